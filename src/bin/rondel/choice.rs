//! Algorithms and transports that were asked for by name, checked before anything is started.

use crate::stop::Stop;
use rondel::{
    algo::{self, Algorithm},
    comm::built_in_transports,
    plan::{Collective, Shape},
};

/// The algorithm of a name.
pub(crate) fn algorithm(name: &str) -> Result<&'static Algorithm, String> {
    Algorithm::named(name).ok_or_else(|| {
        let known: Vec<&str> = algo::ALL.iter().map(|algorithm| algorithm.name).collect();
        format!("unknown algorithm {name:?}: use one of {}", known.join(", "))
    })
}

/// A transport that this build has, by its name.
pub(crate) fn transport(name: &str) -> Result<String, String> {
    let built_in = built_in_transports();
    let found =
        built_in.iter().map(|transport| transport.name()).find(|known| known.eq_ignore_ascii_case(name));
    found.map(str::to_owned).ok_or_else(|| {
        let known: Vec<&str> = built_in.iter().map(|transport| transport.name()).collect();
        format!("unknown transport {name:?}: use one of {}", known.join(", "))
    })
}

/// An algorithm that was asked for, and by what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The algorithm.
    pub(crate) algorithm: &'static Algorithm,
    /// The flag or variable.
    pub(crate) by: &'static str,
}

impl Asked {
    /// Refuses an algorithm that does the collective for none of the shapes that are possible.
    pub(crate) fn check(&self, collective: Collective, shapes: &[Shape]) -> Result<(), Stop> {
        let does =
            |algorithm: &&Algorithm| shapes.iter().any(|shape| (algorithm.supports)(collective, shape));
        if does(&self.algorithm) {
            return Ok(());
        }
        let others: Vec<&str> = algo::ALL.iter().filter(does).map(|algorithm| algorithm.name).collect();
        let advice = match others.as_slice() {
            [] => String::new(),
            [only] => format!("use {only}, or "),
            several => format!("use one of {}, or ", several.join(", ")),
        };
        let (nranks, nhosts) = shapes.first().map_or((0, 0), |shape| (shape.nranks(), shape.nhosts()));
        let among = match (nranks, nhosts) {
            _ if shapes.len() > 1 => format!("{nranks} ranks"),
            (1, _) => "one rank".to_owned(),
            (_, 1) => format!("{nranks} ranks of one host"),
            _ => format!("{nranks} ranks on {nhosts} hosts"),
        };
        Err(Stop::Usage(format!(
            "{}={} does no {} among {among}: {advice}leave it out",
            self.by,
            self.algorithm.name,
            collective.name()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_or_refused_with_those_that_there_are() {
        assert_eq!(algorithm("ring").unwrap().name, "ring");
        let error = algorithm("rings").unwrap_err();
        assert!(error.starts_with("unknown algorithm \"rings\": use one of ring, tree, "), "{error}");
        assert_eq!(transport("TCP").as_deref(), Ok("tcp"));
        let error = transport("pigeon").unwrap_err();
        let known: Vec<&str> = built_in_transports().iter().map(|transport| transport.name()).collect();
        assert_eq!(error, format!("unknown transport \"pigeon\": use one of {}", known.join(", ")));
    }

    #[test]
    fn an_algorithm_of_other_collectives_is_refused_with_those_of_this_one() {
        let check = |name, collective, shapes: &[Shape]| {
            let asked = Asked { algorithm: Algorithm::named(name).unwrap(), by: "--algorithm" };
            asked.check(collective, shapes).map_err(|stop| stop.to_string())
        };
        let (flat, hosts) = (Shape::flat(4), Shape { hosts: Box::new([0, 0, 1, 1]), ..Shape::flat(4) });
        assert_eq!(check("ring", Collective::AllReduce, std::slice::from_ref(&flat)), Ok(()));
        assert_eq!(
            check("ring", Collective::Barrier, std::slice::from_ref(&flat)).unwrap_err(),
            "--algorithm=ring does no barrier among 4 ranks of one host: use dissemination, or leave it out"
        );
        let two_level = check("two_level", Collective::Broadcast, std::slice::from_ref(&flat)).unwrap_err();
        assert_eq!(
            two_level,
            "--algorithm=two_level does no broadcast among 4 ranks of one host: use one of ring, tree, one_shot, or \
             leave it out"
        );
        assert_eq!(check("two_level", Collective::Broadcast, &[flat, hosts]), Ok(()));
        let alone = check("p2p", Collective::Send, &[Shape::flat(1)]).unwrap_err();
        assert!(alone.ends_with("among one rank: leave it out"), "{alone}");
    }
}
