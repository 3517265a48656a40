//! Names of interfaces as users write them, with NCCL's syntax.

use std::{fmt, str::FromStr};

/// Which interfaces a user wants, by name.
///
/// * `eth,ib`: names that begin with `eth` or `ib`
/// * `=eth0,ib1`: exactly these
/// * `^docker,lo`: all but those that begin so
/// * `^=eth3`: all but exactly this
///
/// ```
/// use rondel_tcp::interfaces::NameFilter;
/// let filter: NameFilter = "^docker,lo".parse()?;
/// assert!(filter.admits("eth0") && !filter.admits("docker0"));
/// # Ok::<(), rondel_tcp::interfaces::FilterError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameFilter {
    exclude: bool,
    exact: bool,
    names: Vec<String>,
}

/// A name filter that says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    text: String,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} names no interface: expected names or beginnings of names with commas between them, such as \
             `eth,ib`, `=eth0`, `^docker,lo` or `^=eth3`",
            self.text
        )
    }
}

impl std::error::Error for FilterError {}

impl FromStr for NameFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let rest = text.trim();
        let (exclude, rest) = rest.strip_prefix('^').map_or((false, rest), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let names: Vec<_> =
            rest.split(',').map(str::trim).filter(|name| !name.is_empty()).map(String::from).collect();
        if names.is_empty() || names.iter().any(|name| name.contains(['^', '=', '/', ' '])) {
            return Err(FilterError { text: text.into() });
        }
        Ok(Self { exclude, exact, names })
    }
}

impl fmt::Display for NameFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signs = [(self.exclude, "^"), (self.exact, "=")];
        signs.iter().filter(|(set, _)| *set).try_for_each(|(_, sign)| f.write_str(sign))?;
        f.write_str(&self.names.join(","))
    }
}

impl NameFilter {
    /// Whether the user wants the interface.
    pub fn admits(&self, name: &str) -> bool {
        self.lists(name) != self.exclude
    }

    /// Whether the user asks for the interface by name, rather than not excluding it.
    pub fn names(&self, name: &str) -> bool {
        !self.exclude && self.lists(name)
    }

    fn lists(&self, name: &str) -> bool {
        self.names
            .iter()
            .any(|listed| if self.exact { name == listed } else { name.starts_with(listed.as_str()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> NameFilter {
        text.parse().expect("a filter")
    }

    #[test]
    fn the_four_forms() {
        assert!(filter("eth,ib").names("eth0") && filter("eth,ib").names("ib3"));
        assert!(!filter("eth,ib").admits("wlan0"));
        assert!(filter("=eth1").admits("eth1") && !filter("=eth1").admits("eth10"));
        assert!(filter("^docker,lo").admits("eth0") && !filter("^docker,lo").names("eth0"));
        assert!(!filter("^docker,lo").admits("lo") && !filter("^docker,lo").admits("docker0"));
        assert!(filter("^=eth1").admits("eth10") && !filter("^=eth1").admits("eth1"));
    }

    #[test]
    fn what_names_nothing_is_refused_with_the_syntax() {
        for text in ["", "^", "=", "^=", " , ", "^=,", "eth0,^lo", "a b"] {
            let error = text.parse::<NameFilter>().expect_err(text);
            assert!(error.to_string().contains("`^docker,lo`"), "{error}");
        }
    }

    #[test]
    fn printing_gives_the_same_filter() {
        for text in ["eth,ib", "=eth0", "^docker,lo", "^=eth3,eth4"] {
            assert_eq!(filter(text).to_string(), text);
        }
    }
}
