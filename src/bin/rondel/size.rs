//! Numbers of bytes as people write them, and sweeps over them.

use std::{fmt, str::FromStr};

/// A number of bytes: `4096`, `64K`, `1.5M`, `2GiB`. Units are powers of 1024, as in nccl-tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bytes(pub(crate) u64);

impl Bytes {
    /// More than this is nowhere, and sums of it stay far from overflowing.
    const MOST: u64 = 1 << 50;
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || {
            format!(
                "{text:?} is not a number of bytes: write a number from 0 to 1048576G, with an optional K, M or G, such as 8, \
                 64K or 1.5M"
            )
        };
        let upper = text.trim().to_ascii_uppercase();
        let (number, shift) = match upper.find(|c: char| !c.is_ascii_digit() && c != '.') {
            None => (upper.as_str(), 0),
            Some(at) => match &upper[at..] {
                "B" => (&upper[..at], 0),
                "K" | "KB" | "KIB" => (&upper[..at], 10),
                "M" | "MB" | "MIB" => (&upper[..at], 20),
                "G" | "GB" | "GIB" => (&upper[..at], 30),
                _ => return Err(refuse()),
            },
        };
        let bytes = match number.parse::<u64>() {
            Ok(whole) => whole.checked_mul(1 << shift).ok_or_else(refuse)?,
            // A float that is too large becomes the largest integer.
            Err(_) => (number.parse::<f64>().map_err(|_| refuse())? * (1u64 << shift) as f64) as u64,
        };
        if bytes <= Self::MOST { Ok(Bytes(bytes)) } else { Err(refuse()) }
    }
}

impl fmt::Display for Bytes {
    /// The largest unit that leaves no fraction, or one digit after the point.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bytes(bytes) = *self;
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
            None => write!(f, "{bytes} B"),
            Some((shift, unit)) if bytes.trailing_zeros() >= shift => write!(f, "{} {unit}", bytes >> shift),
            Some((shift, unit)) => write!(f, "{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
        }
    }
}

/// How a sweep goes from one size to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Times this: 2 or more.
    Factor(u64),
    /// Plus this many bytes.
    Bytes(u64),
}

/// The sizes from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sweep {
    first: u64,
    last: u64,
    step: Step,
}

/// Sizes beyond this number are a mistake rather than a wish.
const MOST_SIZES: u64 = 100_000;

impl Sweep {
    /// Checks that the sweep goes somewhere and ends.
    pub(crate) fn new(first: u64, last: u64, step: Step) -> Result<Self, String> {
        if first > last {
            return Err(format!(
                "-b {first} is larger than -e {last}: the sweep goes up from -b to -e; swap them or raise -e"
            ));
        }
        match step {
            Step::Factor(_) if first == 0 => {
                return Err(
                    "-b 0 with a factor would never grow: start at 1 or more, or give a step with -i".into(),
                );
            }
            Step::Bytes(0) => {
                return Err(
                    "-i 0 would never reach -e: give a step of 1 or more bytes, or a factor with -f".into()
                );
            }
            Step::Bytes(bytes) if (last - first) / bytes >= MOST_SIZES => {
                return Err(format!(
                    "-b {first} -e {last} -i {bytes} are more than {MOST_SIZES} sizes: give a larger step with -i"
                ));
            }
            _ => {}
        }
        Ok(Sweep { first, last, step })
    }
    /// All the sizes, in order.
    pub(crate) fn sizes(self) -> impl Iterator<Item = u64> {
        let next = move |size: &u64| match self.step {
            Step::Factor(factor) => size.checked_mul(factor),
            Step::Bytes(bytes) => size.checked_add(bytes),
        };
        std::iter::successors(Some(self.first), next).take_while(move |size| *size <= self.last)
    }
    /// The first size, and the last that may occur.
    pub(crate) fn ends(self) -> (u64, u64) {
        (self.first, self.last)
    }
    /// How it goes from one size to the next.
    pub(crate) fn step(self) -> Step {
        self.step
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "minBytes {} maxBytes {} step: ", self.first, self.last)?;
        match self.step {
            Step::Factor(factor) => write!(f, "{factor}(factor)"),
            Step::Bytes(bytes) => write!(f, "{bytes}(bytes)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, want) in [
            ("8", 8),
            ("64K", 65536),
            ("64k", 65536),
            ("1M", 1 << 20),
            ("2GiB", 2 << 30),
            ("1.5M", 3 << 19),
            ("12B", 12),
            ("3MB", 3 << 20),
        ] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(want)), "{text}");
        }
        for text in [
            "",
            "K",
            "8T",
            "-1",
            "1e3",
            "8 8",
            "99999999999G",
            "1048577G",
            "9999999999999999999999",
            "1..2",
            ".",
        ] {
            let error = text.parse::<Bytes>().unwrap_err();
            assert!(error.contains("0 to 1048576G") && error.contains("64K"), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_are_shown_in_their_largest_unit() {
        for (bytes, want) in
            [(7, "7 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (3 << 29, "1.5 GiB")]
        {
            assert_eq!(Bytes(bytes).to_string(), want);
        }
    }

    #[test]
    fn a_sweep_ends_at_or_before_its_last_size() {
        let by_four = Sweep::new(8, 1000, Step::Factor(4)).unwrap();
        assert_eq!(by_four.sizes().collect::<Vec<_>>(), [8, 32, 128, 512]);
        let by_bytes = Sweep::new(0, 100, Step::Bytes(50)).unwrap();
        assert_eq!(by_bytes.sizes().collect::<Vec<_>>(), [0, 50, 100]);
        let one = Sweep::new(8, 8, Step::Factor(2)).unwrap();
        assert_eq!(one.sizes().collect::<Vec<_>>(), [8]);
        let huge = Sweep::new(1, u64::MAX, Step::Factor(1 << 32)).unwrap();
        assert_eq!(huge.sizes().count(), 2);
    }

    #[test]
    fn sweeps_that_lead_nowhere_are_refused_with_the_flag() {
        assert!(Sweep::new(16, 8, Step::Factor(4)).unwrap_err().contains("-b 16 is larger than -e 8"));
        assert!(Sweep::new(8, 16, Step::Bytes(0)).unwrap_err().contains("-i 0"));
        assert!(Sweep::new(0, 16, Step::Factor(2)).unwrap_err().contains("-b 0"));
        assert!(Sweep::new(0, 1 << 30, Step::Bytes(1)).unwrap_err().contains("100000 sizes"));
    }
}
