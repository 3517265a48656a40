//! What the sweeps go through.

use rondel::{
    algo::{self, Algorithm},
    plan::{Collective, Shape},
};

/// Every collective that an algorithm does, with roots at both ends, on one host and on several.
pub(crate) fn cases(n: u32) -> Vec<(&'static Algorithm, Collective, Shape)> {
    let mut cases = Vec::new();
    for algorithm in algo::ALL {
        for collective in Collective::of_all_ranks() {
            let mut shapes = vec![Shape::flat(n)];
            if collective.has_root() && n > 1 {
                shapes.push(Shape::flat(n).with_root(n - 1));
            }
            if n > 3 {
                let hosts = (0..n).map(|rank| rank / 3).collect();
                shapes.push(Shape { hosts, ..Shape::flat(n) });
            }
            shapes.retain(|shape| (algorithm.supports)(collective, shape));
            cases.extend(shapes.into_iter().map(|shape| (algorithm, collective, shape)));
        }
    }
    cases
}

/// How many times as many seeds as usual a sweep goes through.
pub(crate) fn soak() -> u64 {
    let given = std::env::var("RONDEL_SOAK").unwrap_or_else(|_| "1".to_owned());
    given.parse().unwrap_or_else(|_| panic!("RONDEL_SOAK is {given:?}; it multiplies seeds, such as 20"))
}

/// Random numbers that are the same in every run.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
    /// A number below `bound`, which is at least 1.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}
