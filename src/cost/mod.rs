//! What a collective costs: simulated on a virtual clock, and predicted in closed form for the tuner.
//!
//! Both speak of a [`Machine`] in the terms of LogGP. A message takes `overhead` of the sender's CPU, is under way for
//! `latency`, and takes `overhead` of the receiver's CPU; combining or copying a byte takes [`Machine::gamma`] of CPU.
//! Between hosts, n bytes keep the port out of one host and the port into the other busy for `n / bytes_per_sec` each,
//! and all ranks of a host share these ports. Within a host it is the CPUs of the two ranks that move the bytes, each
//! for half of that time, so that two ranks that exchange n bytes are done after `n / bytes_per_sec`.
//!
//! * [`simulate`] runs the plans of all ranks through the executor that the library runs. It is what closed forms are
//!   tested against.
//! * [`formula`] predicts the same in a few operations, for any number of ranks.
//! * [`tuner`] turns predictions into a table.
//!
//! Not modelled: caches (large operations are slower than predicted, by about the same factor for all algorithms),
//! congestion between hosts, and ranks that arrive late.

pub mod formula;
pub mod simulate;
mod spread;
pub mod tuner;

use rondel_transport_api::Link;
use std::time::Duration;

/// What ranks run on and talk over. The same on every rank of a communicator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Between ranks of one host. Its bytes are moved by the ranks' CPUs.
    pub within: Link,
    /// Between hosts; the rate is that of a host's port, which its ranks share.
    pub across: Link,
    /// Seconds of CPU for each byte that is combined or copied.
    pub gamma: f64,
    /// What carries the bytes between ranks of one host.
    pub medium: Medium,
    /// Messages up to this many bytes leave before the receiver has asked for them.
    pub eager: u64,
    /// Ranks that share one CPU. Below one counts as one.
    pub ranks_per_cpu: f64,
}

/// What carries bytes between ranks of one host, where that makes a difference beyond its [`Link`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// Messages beyond the sockets' buffers wait for each other.
    #[default]
    Sockets,
    /// Messages stream through a ring, however long. Several that a step combines are copied together first, which costs
    /// `gamma` a byte more; out of sockets they have to be copied in any case.
    SharedMemory,
}

impl Machine {
    /// Ranks on one host over loopback TCP: a message costs a system call of a good microsecond at either end, and what
    /// is left of the 3.3 us that a byte takes to a busy reader is flight. The rate is that of buffers in the cache.
    pub const LOOPBACK: Link =
        Link { latency: Duration::from_nanos(700), overhead: Duration::from_nanos(1300), bytes_per_sec: 9e9 };

    /// Ranks on one host through shared memory: a line takes a tenth of a microsecond from core to core, the overhead is that
    /// of an action and its post; the rate is that of buffers in the cache, copied in by one rank and read by the other.
    pub const SHARED_MEMORY: Link =
        Link { latency: Duration::from_nanos(100), overhead: Duration::from_nanos(200), bytes_per_sec: 10e9 };

    /// Hosts of one data centre over TCP: a few switches, the interrupt and the wake-up make the latency, the longer
    /// path through the kernel the overhead; the rate is what one stream gets from a 25 to 100 Gb/s port.
    pub const DATA_CENTRE_TCP: Link =
        Link { latency: Duration::from_micros(15), overhead: Duration::from_micros(2), bytes_per_sec: 3e9 };

    /// With a CPU of its own for each rank, 12 GB/s for combining in the cache, and socket buffers of 256 KiB.
    pub const fn new(within: Link, across: Link) -> Self {
        Machine {
            within,
            across,
            gamma: 1.0 / 12e9,
            medium: Medium::Sockets,
            eager: 256 << 10,
            ranks_per_cpu: 1.0,
        }
    }

    /// Hosts of one data centre whose ranks share memory.
    pub const fn sharing_memory() -> Self {
        Machine {
            medium: Medium::SharedMemory,
            ..Machine::new(Machine::SHARED_MEMORY, Machine::DATA_CENTRE_TCP)
        }
    }

    /// The same with CPUs that this many ranks share.
    pub const fn with_ranks_per_cpu(mut self, ranks: f64) -> Self {
        self.ranks_per_cpu = ranks;
        self
    }

    /// What a rank sees that shares its CPU, when all ranks work at the same time.
    fn rates(&self) -> Rates {
        let share = self.ranks_per_cpu.max(1.0);
        let rate = |link: &Link, byte_share: f64| LinkRate {
            alpha: link.latency.as_secs_f64(),
            beta: byte_share / link.bytes_per_sec,
            overhead: link.overhead.as_secs_f64() * share,
        };
        Rates {
            within: rate(&self.within, share),
            across: rate(&self.across, 1.0),
            gamma: self.gamma * share,
            staging: match self.medium {
                Medium::Sockets => 0.0,
                Medium::SharedMemory => self.gamma * share,
            },
            waiting: match self.medium {
                Medium::Sockets => 1.25,
                Medium::SharedMemory => 1.0,
            },
        }
    }
}

impl Default for Machine {
    fn default() -> Self {
        Machine::new(Machine::LOOPBACK, Machine::DATA_CENTRE_TCP)
    }
}

/// A machine in seconds, per rank.
#[derive(Clone, Copy, Debug)]
struct Rates {
    within: LinkRate,
    across: LinkRate,
    /// Seconds of CPU for a byte that is combined or copied.
    gamma: f64,
    /// The same for a byte that is copied together with those of other messages.
    staging: f64,
    /// By how much a byte of a message much longer than a slice is slower.
    waiting: f64,
}

#[derive(Clone, Copy, Debug)]
struct LinkRate {
    /// Seconds of flight.
    alpha: f64,
    /// Seconds a byte keeps a port busy.
    beta: f64,
    /// Seconds of CPU for a message, at each end.
    overhead: f64,
}
