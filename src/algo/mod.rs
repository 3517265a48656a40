//! The algorithms: pure functions from a shape and a rank to a plan.
//!
//! One file per shape of communication; each head states steps, bytes on the wire and source.

use crate::plan::{Alias, Builder, Collective, Plan, Rank, Shape};

/// One way to do one or several collectives.
#[derive(Clone, Copy)]
pub struct Algorithm {
    /// Its name on the command line and in tables.
    pub name: &'static str,
    /// Whether it does a collective on this shape.
    pub supports: fn(Collective, &Shape) -> bool,
    /// Into how many chunks it cuts a flat buffer.
    pub chunks: fn(Collective, &Shape) -> u32,
    /// Writes one rank's program.
    pub build: fn(&mut Builder, Collective, &Shape),
}

impl std::fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Every algorithm there is. Tests iterate it, the tuner iterates it; there is no other list.
pub const ALL: &[Algorithm] = &[];

impl Algorithm {
    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Algorithm> {
        ALL.iter().find(|a| a.name == name)
    }
    /// The plan of one rank.
    pub fn plan(
        &self,
        collective: Collective,
        rank: Rank,
        shape: &Shape,
        alias: Alias,
        prescale: bool,
    ) -> Plan {
        let mut builder =
            Builder::new(collective, rank, shape, (self.chunks)(collective, shape), alias, prescale);
        (self.build)(&mut builder, collective, shape);
        builder.build()
    }
}
