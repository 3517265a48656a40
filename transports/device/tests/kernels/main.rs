//! Every kernel of every level against a reference, bit for bit.

mod agreement;
mod data;
mod exhaustive;
mod matrix;
mod reference;
mod streaming;

use data::Memory;
use rondel_device::{
    Combine, DataType, Keep, Operand, Reduction,
    kernels::{self, Level},
};

const COMBINES: [Combine; 4] = [Combine::Sum, Combine::Prod, Combine::Min, Combine::Max];

/// One call over memory of its own.
struct Call<'a> {
    level: Level,
    reduction: &'a Reduction,
    /// Elements and rawness of every operand.
    operands: &'a [(&'a [u64], bool)],
    /// The destination equals this operand.
    in_place: Option<usize>,
    /// Distance of each operand and then of the destination from an aligned address, repeated.
    misalign: &'a [usize],
    last: bool,
    keep: Keep,
}

impl Call<'_> {
    /// The result. Fails if anything but the result was written.
    fn run(&self) -> Vec<u64> {
        let dtype = self.reduction.dtype;
        let count = self.operands[0].0.len();
        let mut misalign = self.misalign.iter().cycle();
        let mut memory: Vec<_> = self
            .operands
            .iter()
            .map(|(elements, _)| Memory::new(dtype, elements, *misalign.next().expect("endless")))
            .collect();
        memory.push(Memory::new(dtype, &vec![0x55; count], *misalign.next().expect("endless")));
        let target = self.in_place.unwrap_or(self.operands.len());
        let before = memory.clone();
        let addresses: Vec<_> = memory.iter_mut().map(Memory::addr).collect();
        let operands: Vec<_> = addresses
            .iter()
            .zip(self.operands)
            .map(|(addr, (_, raw))| Operand { addr: addr.cast_const(), raw: *raw })
            .collect();
        // SAFETY: all memory has `count` elements; the destination is separate or an operand.
        unsafe {
            kernels::reduce_at(
                self.level,
                self.reduction,
                &operands,
                addresses[target],
                count,
                self.last,
                self.keep,
            );
        }
        for (i, (after, before)) in memory.iter().zip(&before).enumerate() {
            assert!(after.guarded(), "{} wrote outside of its destination", self.describe());
            if i != target {
                assert_eq!(
                    after.elements(dtype),
                    before.elements(dtype),
                    "{} wrote to operand {i}",
                    self.describe()
                );
            }
        }
        memory[target].elements(dtype)
    }

    fn describe(&self) -> String {
        format!(
            "{} {} {:?} of {} operands (raw: {:?}), {} elements, pre {:?}, divide {:?}, in place {:?}, misaligned {:?}",
            self.level,
            self.reduction.dtype,
            self.reduction.combine,
            self.operands.len(),
            self.operands.iter().map(|operand| operand.1).collect::<Vec<_>>(),
            self.operands[0].0.len(),
            self.reduction.pre,
            self.reduction.divide,
            self.in_place,
            self.misalign,
        )
    }

    /// Compares the result with what is expected.
    fn check(&self, expected: &[u64]) {
        let result = self.run();
        if let Some(i) = (0..expected.len()).find(|i| result[*i] != expected[*i]) {
            let operands: Vec<_> =
                self.operands.iter().map(|(elements, _)| format!("{:#x}", elements[i])).collect();
            panic!(
                "{}: element {i} from {operands:?} is {:#x}, expected {:#x}",
                self.describe(),
                result[i],
                expected[i]
            );
        }
    }
}

/// What the reference makes of the operands.
fn expected(reduction: &Reduction, operands: &[(&[u64], bool)], last: bool) -> Vec<u64> {
    let element = |i: usize| {
        let elements: Vec<_> = operands.iter().map(|(elements, raw)| (elements[i], *raw)).collect();
        reference::reduce(reduction, &elements, last)
    };
    (0..operands[0].0.len()).map(element).collect()
}

/// The plain reduction with an operator.
fn plain(dtype: DataType, combine: Combine) -> Reduction {
    Reduction { dtype, combine, pre: None, divide: None }
}
