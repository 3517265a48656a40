//! Where the ranks of a measurement meet, outside of what is measured.

use crate::stop::Stop;
use rondel::Communicator;
use std::time::Instant;

/// Barrier and exchange of one number per rank, and the clock.
pub(crate) trait Meeting {
    /// Returns when all ranks have come.
    fn barrier(&mut self) -> Result<(), Stop>;
    /// Every rank's value, by rank. A barrier too.
    fn gather(&mut self, value: f64) -> Result<Vec<f64>, Stop>;
    /// Microseconds since some moment.
    fn now_us(&self) -> f64;
}

/// Over the communicator itself: for ranks that share no memory.
#[derive(Debug)]
pub(crate) struct OverCommunicator<'a> {
    comm: &'a Communicator,
    start: Instant,
}

impl<'a> OverCommunicator<'a> {
    /// Meets over `comm`.
    pub(crate) fn new(comm: &'a Communicator) -> Self {
        OverCommunicator { comm, start: Instant::now() }
    }
}

impl Meeting for OverCommunicator<'_> {
    fn barrier(&mut self) -> Result<(), Stop> {
        Ok(self.comm.barrier()?)
    }
    fn gather(&mut self, value: f64) -> Result<Vec<f64>, Stop> {
        let mut values = vec![0.0; self.comm.nranks() as usize];
        self.comm.all_gather(&[value], &mut values)?;
        Ok(values)
    }
    fn now_us(&self) -> f64 {
        self.start.elapsed().as_secs_f64() * 1e6
    }
}
