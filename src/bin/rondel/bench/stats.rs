//! Numbers about times.

/// What can be said about a set of times, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spread {
    /// Smallest.
    pub(crate) min: f64,
    /// Largest.
    pub(crate) max: f64,
    /// Arithmetic mean.
    pub(crate) mean: f64,
    /// Half are not above.
    pub(crate) p50: f64,
    /// 95 % are not above.
    pub(crate) p95: f64,
    /// 99 % are not above.
    pub(crate) p99: f64,
    /// Standard deviation of the population.
    pub(crate) stdev: f64,
}

impl Spread {
    /// Of at least one time.
    pub(crate) fn of(times: &[f64]) -> Self {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len() as f64;
        let mean = sorted.iter().sum::<f64>() / n;
        let variance = sorted.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / n;
        Spread {
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            mean,
            p50: percentile(&sorted, 50),
            p95: percentile(&sorted, 95),
            p99: percentile(&sorted, 99),
            stdev: variance.sqrt(),
        }
    }
    /// Standard deviation in percent of the mean.
    pub(crate) fn cv_percent(&self) -> f64 {
        if self.mean > 0.0 { 100.0 * self.stdev / self.mean } else { 0.0 }
    }
}

/// The smallest of the sorted times that at least `percent` of them do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_occurred() {
        let times: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let spread = Spread::of(&times);
        assert_eq!((spread.min, spread.max, spread.mean), (1.0, 200.0, 100.5));
        assert_eq!((spread.p50, spread.p95, spread.p99), (100.0, 190.0, 198.0));
        assert!((spread.stdev - 57.73).abs() < 0.01, "{}", spread.stdev);
        assert!((spread.cv_percent() - 57.44).abs() < 0.01);
    }

    #[test]
    fn one_time_is_all_of_its_percentiles() {
        let spread = Spread::of(&[3.0]);
        assert_eq!((spread.min, spread.p50, spread.p99, spread.max, spread.stdev), (3.0, 3.0, 3.0, 3.0, 0.0));
    }

    #[test]
    fn the_99th_of_few_is_the_largest() {
        assert_eq!(Spread::of(&[1.0, 2.0, 3.0]).p99, 3.0);
        assert_eq!(Spread::of(&[1.0, 2.0, 3.0]).p50, 2.0);
    }
}
