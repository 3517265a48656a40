//! Ranks that see the same inputs in different ways get the same bits.

use crate::{Call, data, plain};
use rondel_device::{Combine, DataType, Keep, ReduceOp, Scalar, kernels::Level};

#[test]
fn an_input_read_raw_equals_the_same_input_scaled_by_its_owner() {
    const RANKS: usize = 4;
    const COUNT: usize = 333;
    let mut random = data::Random(42);
    for dtype in DataType::ALL.into_iter().filter(|dtype| *dtype != DataType::Bool) {
        let op = if dtype.is_float() { ReduceOp::Avg } else { ReduceOp::PreMulSum(Scalar::Int(-7)) };
        let reduction = op.reduction(dtype, RANKS as u32).expect("defined");
        let levels = Level::available();
        let call = |level, operands: &[(&[u64], bool)]| {
            let misalign = [0, 1, 2];
            Call {
                level,
                reduction: &reduction,
                operands,
                in_place: None,
                misalign: &misalign,
                last: true,
                keep: Keep::Keep,
            }
            .run()
        };
        let inputs: Vec<_> = (0..RANKS).map(|_| data::elements(dtype, COUNT, &mut random)).collect();
        // Each rank has another CPU.
        let level = |rank: usize| levels[rank % levels.len()];
        let sent: Vec<_> = (0..RANKS).map(|rank| call(level(rank), &[(&inputs[rank], true)])).collect();
        let results: Vec<_> = (0..RANKS)
            .map(|own| {
                let operand = |rank: usize| {
                    if rank == own { (&inputs[rank][..], true) } else { (&sent[rank][..], false) }
                };
                call(level(own), &(0..RANKS).map(operand).collect::<Vec<_>>())
            })
            .collect();
        assert!(results.iter().all(|result| *result == results[0]), "ranks differ in {dtype}");
    }
}

#[test]
fn min_and_max_do_not_depend_on_the_order() {
    let mut random = data::Random(3);
    for dtype in DataType::ALL {
        let inputs: Vec<_> = (0..3).map(|_| data::elements(dtype, 2000, &mut random)).collect();
        for combine in [Combine::Min, Combine::Max] {
            let reduction = plain(dtype, combine);
            let ordered = |order: [usize; 3]| {
                let operands = order.map(|i| (&inputs[i][..], false));
                let level = Level::best();
                let misalign = [0];
                let (in_place, last, keep) = (None, true, Keep::Keep);
                Call {
                    level,
                    reduction: &reduction,
                    operands: &operands,
                    in_place,
                    misalign: &misalign,
                    last,
                    keep,
                }
                .run()
            };
            let first = ordered([0, 1, 2]);
            for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                assert!(ordered(order) == first, "{dtype} {combine:?} in order {order:?}");
            }
        }
    }
}
