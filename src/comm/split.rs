//! Communicators of some of the ranks.

use super::Communicator;
use crate::{error::Result, plan::Rank};
use std::sync::{Arc, atomic::Ordering};

/// What each rank says about the part that it wants to be in.
const WORDS: usize = 3;

impl Communicator {
    /// Communicators of the ranks that give the same color, ordered by `key`, then by rank here. A rank that gives no
    /// color gets none. Every rank calls it. Parent and children share connections' listener, watcher and engine, but no
    /// lanes; they may be destroyed in any order.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Communicator>> {
        let nranks = self.nranks() as usize;
        let mine = [u64::from(color.is_some()), u64::from(color.unwrap_or(0)), i64::from(key) as u64];
        let mut all = vec![0u64; WORDS * nranks];
        self.all_gather(&mine, &mut all)?;
        let split = self.inner.splits.fetch_add(1, Ordering::Relaxed);
        let Some(color) = color else { return Ok(None) };
        let said = |rank: usize| &all[WORDS * rank..WORDS * (rank + 1)];
        let same = |rank: &usize| said(*rank)[0] == 1 && said(*rank)[1] == u64::from(color);
        let mut ranks: Vec<usize> = (0..nranks).filter(same).collect();
        ranks.sort_by_key(|&rank| (said(rank)[2] as i64, rank));
        let rank = ranks.iter().position(|&rank| rank == self.rank() as usize);
        let rank = rank.expect("this rank gave the color") as Rank;
        let job_ranks: Arc<[Rank]> = ranks.iter().map(|&rank| self.inner.job_ranks[rank]).collect();
        let id = child_id(self.inner.id, split, color);
        let context = self.inner.context.clone();
        Ok(Some(Communicator::found(context, id, rank, job_ranks, self.inner.settings.clone())))
    }
}

/// The id of a child: the same on all its ranks, and different from that of every other communicator of the job.
fn child_id(parent: u64, split: u32, color: u32) -> u64 {
    let mix = |hash: u64, word: u64| {
        let mixed = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ mixed >> 32
    };
    mix(mix(mix(parent, 0x73_706c_6974), u64::from(split)), u64::from(color))
}
