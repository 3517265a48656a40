//! Numbers as flags take them: one sentence says what is expected.

use std::ops::RangeInclusive;

/// Reads a whole number of `what` within `range`.
pub(crate) fn whole<T>(
    what: &'static str,
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<u64> + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| format!("give a whole number of {what} from {} to {}", range.start(), range.end()))
    }
}

/// Reads a number of `what` within `range`, with or without a fraction.
pub(crate) fn real(
    what: &'static str,
    range: RangeInclusive<f64>,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        // What is not a number is in no range either.
        text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
            format!("give a number of {what} from {} to {}, such as 5 or 0.5", range.start(), range.end())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_refused_with_what_is_expected() {
        let parse = whole::<u32>("ranks", 1..=64);
        assert_eq!((parse("1"), parse("64")), (Ok(1), Ok(64)));
        for text in ["", "0", "65", "-1", "1.5", "1e3", "two", "18446744073709551616"] {
            assert_eq!(parse(text).unwrap_err(), "give a whole number of ranks from 1 to 64", "{text}");
        }
        let narrow = whole::<u8>("things", 0..=1000);
        assert_eq!((narrow("255"), narrow("256").is_err()), (Ok(255), true));
    }

    #[test]
    fn numbers_that_are_none_are_in_no_range() {
        let parse = real("seconds", 0.5..=60.0);
        assert_eq!((parse("0.5"), parse("60"), parse("1e1")), (Ok(0.5), Ok(60.0), Ok(10.0)));
        for text in ["", "NaN", "inf", "-inf", "-1", "0", "60.1", "1s"] {
            assert!(parse(text).unwrap_err().contains("seconds from 0.5 to 60"), "{text}");
        }
    }
}
