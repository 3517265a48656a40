//! Rate of the host kernels in GB/s of result, next to memcpy, for results in the second-level cache and in memory.
//!
//! Compare within one run: the ratio to memcpy says more than the rate.

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use rondel_device::{DataType, Keep, Operand, ReduceOp, kernels};
use std::time::Duration;

/// Everything is aligned to this, as the buffers of a collective usually are.
const PAGE: usize = 4 << 10;

/// A page-aligned buffer filled with numbers that are normal in every floating type, and so are their sums and averages.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new(len: usize) -> Self {
        let bytes: Vec<u8> = (0..len + PAGE).map(|i| 0x30 + (i % 13) as u8).collect();
        let start = bytes.as_ptr().align_offset(PAGE);
        Self { bytes, start }
    }
    fn addr(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }
}

fn rates(c: &mut Criterion) {
    for (name, len) in [("256KiB", 256 << 10), ("64MiB", 64 << 20)] {
        let mut group = c.benchmark_group(name);
        group.sampling_mode(SamplingMode::Flat).sample_size(10);
        group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(500));
        group.throughput(Throughput::Bytes(len as u64));
        let (mut a, mut b, mut c, mut dst) =
            (Buffer::new(len), Buffer::new(len), Buffer::new(len), Buffer::new(len));
        let (a, b, c, dst) = (a.addr(), b.addr(), c.addr(), dst.addr());

        for keep in [Keep::Keep, Keep::Stream] {
            group.bench_function(BenchmarkId::new("copy", format!("{keep:?}")), |bench| {
                // SAFETY: separate buffers of `len` bytes.
                bench.iter(|| unsafe { kernels::copy(a, dst, len, keep) });
            });
        }
        let mut reduce = |id: BenchmarkId, op: ReduceOp, dtype: DataType, srcs: &[*mut u8], raw, to, keep| {
            let reduction = op.reduction(dtype, 4).expect("defined for every type in the list");
            let operands: Vec<_> = srcs.iter().map(|src| Operand { addr: src.cast_const(), raw }).collect();
            group.bench_function(id, |bench| {
                // SAFETY: separate buffers of `len` bytes, or the first operand's own.
                bench.iter(|| unsafe {
                    kernels::reduce(&reduction, &operands, to, len / dtype.size(), true, keep);
                });
            });
        };
        let types =
            [DataType::F32, DataType::Bf16, DataType::F16, DataType::F64, DataType::I32, DataType::F8E4M3];
        for dtype in types {
            let id = |shape: &str| BenchmarkId::new(shape, dtype);
            reduce(id("sum2"), ReduceOp::Sum, dtype, &[a, b], false, dst, Keep::Keep);
            reduce(id("sum2 in place"), ReduceOp::Sum, dtype, &[a, b], false, a, Keep::Keep);
            reduce(id("sum2 stream"), ReduceOp::Sum, dtype, &[a, b], false, dst, Keep::Stream);
            reduce(id("sum3"), ReduceOp::Sum, dtype, &[a, b, c], false, dst, Keep::Keep);
            reduce(id("sum6"), ReduceOp::Sum, dtype, &[a, b, c, a, b, c], false, dst, Keep::Keep);
            reduce(id("max2"), ReduceOp::Max, dtype, &[a, b], false, dst, Keep::Keep);
            reduce(id("avg2 raw"), ReduceOp::Avg, dtype, &[a, b], true, dst, Keep::Keep);
        }
        group.finish();
    }
}

criterion_group!(benches, rates);
criterion_main!(benches);
