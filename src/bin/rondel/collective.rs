//! Names of the library's collectives on the command line.

use rondel::plan::Collective;

/// Finds a name, also without underscores or with hyphens.
pub(crate) fn parse(text: &str) -> Result<Collective, String> {
    let plain = |name: &str| name.to_ascii_lowercase().replace(['_', '-'], "");
    Collective::of_all_ranks().find(|collective| plain(collective.name()) == plain(text)).ok_or_else(|| {
        let known: Vec<&str> = Collective::of_all_ranks().map(Collective::name).collect();
        format!("unknown collective {text:?}: use one of {}", known.join(", "))
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
