//! Which algorithm, how many channels and which slices a collective of some size is done with.

use crate::{
    algo::{self, Algorithm},
    engine::Route,
    plan::{Collective, Shape},
};
use rondel_transport_api::Link;
use std::time::Duration;

/// Chooses by size. The same on every rank that was given the same arguments.
#[derive(Debug)]
pub struct Tuner {
    shape: Shape,
    fixed: Option<&'static Algorithm>,
    channels: Option<u32>,
}

impl Tuner {
    /// For ranks of this shape, whose hosts are joined by `across` and whose ranks within a host by `within`. `fixed`
    /// and `channels` restrict the choice.
    pub fn new(
        shape: &Shape,
        within: Link,
        across: Link,
        fixed: Option<&'static Algorithm>,
        channels: Option<u32>,
    ) -> Self {
        let _ = (within, across);
        Self { shape: shape.clone(), fixed, channels }
    }
    /// Which way a collective goes whose largest buffer on any rank has `bytes`.
    pub fn route(&self, collective: Collective, bytes: u64) -> Route {
        let n = self.shape.nranks();
        let preferred: &[&str] = match collective {
            Collective::AllReduce if bytes <= 16 << 10 && n <= 2 => &["one_shot"],
            Collective::AllReduce if bytes <= 64 << 10 => &["doubling"],
            Collective::AllReduce if n <= 8 => &["direct", "ring"],
            Collective::AllReduce => &["ring"],
            Collective::ReduceScatter | Collective::AllGather if n <= 8 => &["direct", "ring"],
            Collective::ReduceScatter | Collective::AllGather => &["ring"],
            Collective::Broadcast | Collective::Reduce if bytes <= 64 << 10 => &["tree"],
            Collective::Broadcast | Collective::Reduce => &["ring"],
            Collective::AllToAll => &["pairwise"],
            Collective::Gather | Collective::Scatter => &["one_shot"],
            Collective::Barrier => &["dissemination"],
            Collective::Send | Collective::Recv => &["p2p"],
        };
        let named = preferred.iter().filter_map(|name| Algorithm::named(name));
        let algorithm = self
            .fixed
            .into_iter()
            .chain(named)
            .chain(algo::ALL)
            .find(|a| (a.supports)(collective, &self.shape))
            .expect("every collective has an algorithm");
        let channels = self.channels.unwrap_or(1);
        Route { algorithm, channels, slice_bytes: 128 << 10, round_bytes: 8 << 20 }
    }
    /// Every algorithm that does the collective, with its predicted time, best first.
    pub fn candidates(&self, collective: Collective, bytes: u64) -> Vec<(&'static str, Duration)> {
        let _ = bytes;
        let able = algo::ALL.iter().filter(|a| (a.supports)(collective, &self.shape));
        able.map(|a| (a.name, Duration::ZERO)).collect()
    }
    /// The table, for the one line that a communicator logs.
    pub fn summary(&self) -> String {
        String::new()
    }
    /// Changes whenever the table does: ranks with another table must not talk to each other.
    pub fn version(&self) -> u64 {
        1
    }
}
