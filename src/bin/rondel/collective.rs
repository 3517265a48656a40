//! Names of the library's collectives on the command line.

use rondel::plan::Collective;

/// Those that all ranks call.
pub(crate) const ALL: [Collective; 9] = [
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllToAll,
    Collective::Gather,
    Collective::Scatter,
    Collective::Barrier,
];

/// Finds a name, also without underscores or with hyphens.
pub(crate) fn parse(text: &str) -> Result<Collective, String> {
    let plain = |name: &str| name.to_ascii_lowercase().replace(['_', '-'], "");
    ALL.into_iter().find(|collective| plain(collective.name()) == plain(text)).ok_or_else(|| {
        format!("unknown collective {text:?}: use one of {}", ALL.map(Collective::name).join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_are_found_in_any_spelling() {
        assert_eq!(parse("allreduce"), Ok(Collective::AllReduce));
        assert_eq!(parse("all-to-all"), Ok(Collective::AllToAll));
        assert!(parse("send").unwrap_err().contains("\"send\": use one of all_reduce, "));
    }
}
