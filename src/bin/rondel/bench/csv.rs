//! Results as CSV, in the columns in which tables of several libraries lie side by side.

use super::row::Row;

/// The first line.
pub(crate) const HEAD: &str =
    "peer,transport,collective,ranks,bytes,median_us,algbw_GBps,busbw_GBps,place,min_us,max_us,iters,check\n";

/// One line for each place that was measured.
pub(crate) fn lines(row: &Row, nranks: u32) -> String {
    let cell = &row.cell;
    let line = |(place, timing): (super::cell::Place, &super::measure::Timing)| {
        let check = match timing.wrong {
            None => "unchecked",
            Some(0) => "ok",
            Some(_) => "WRONG",
        };
        format!(
            "rondel,{},{},{nranks},{},{:.2},{:.4},{:.4},{},{:.2},{:.2},{},{check}\n",
            row.way.transport,
            cell.test.csv_name(),
            cell.bytes,
            timing.median_us,
            cell.algbw(timing.median_us),
            cell.busbw(timing.median_us, nranks),
            place.name(),
            timing.min_us,
            timing.max_us,
            timing.iters,
        )
    };
    row.timings().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::row::sample, *};

    #[test]
    fn a_row_is_one_line_for_each_place() {
        assert_eq!(
            lines(&sample::row(), 4),
            "rondel,tcp,allreduce,4,1048576,1048.58,1.0000,1.5000,out,1048.33,1049.58,2500,ok\n\
             rondel,tcp,allreduce,4,1048576,524.29,2.0000,3.0000,in,524.04,525.29,2500,WRONG\n"
        );
        assert_eq!(
            HEAD.split(',').count(),
            lines(&sample::row(), 4).lines().next().unwrap().split(',').count()
        );
    }
}
