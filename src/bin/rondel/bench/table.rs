//! Results as text: nccl-tests' columns, and after them what it does not show.

use super::{
    measure::Timing,
    row::{Row, Total},
};
use crate::moment;

/// Which columns there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    /// Ranks, for bandwidths.
    pub(crate) nranks: u32,
    /// Columns with the spread of single operations.
    pub(crate) per_iter: bool,
    /// A column with the time of day.
    pub(crate) timestamps: bool,
}

/// Title, unit and width of a column.
type Column = (&'static str, &'static str, usize);

const CELL: [Column; 5] =
    [("size", "(B)", 12), ("count", "(elements)", 12), ("type", "", 9), ("redop", "", 7), ("root", "", 6)];
const TIMING: [Column; 4] =
    [("time", "(us)", 9), ("algbw", "(GB/s)", 8), ("busbw", "(GB/s)", 8), ("#wrong", "", 7)];
const LATENCY: [Column; 2] = [("p99", "(us)", 9), ("p99-in", "(us)", 9)];
const SPREAD: [Column; 3] = [("i_min", "(us)", 9), ("i_max", "(us)", 9), ("i_cv%", "", 7)];
const WAY: [Column; 3] = [("algorithm", "", 18), ("ch", "", 3), ("transport", "", 10)];
const TIMESTAMP: [Column; 1] = [("timestamp", "(UTC)", 20)];

impl Table {
    /// The lines above the rows.
    pub(crate) fn head(&self) -> String {
        let columns = self.columns();
        let line = |text: fn(&Column) -> &'static str| {
            let cells: String =
                columns.iter().map(|column| format!(" {:>width$}", text(column), width = column.2)).collect();
            format!("#{}\n", cells.trim_end().get(1..).unwrap_or_default())
        };
        let width = |columns: &[Column]| columns.iter().map(|column| column.2 + 1).sum::<usize>();
        let halves = format!(
            "#{:cell$}{:^half$}{:^half$}",
            "",
            "out-of-place",
            "in-place",
            cell = width(&CELL) - 1,
            half = width(&TIMING)
        );
        format!("{}\n{}{}", halves.trim_end(), line(|column| column.0), line(|column| column.1))
    }
    /// One line.
    pub(crate) fn row(&self, row: &Row) -> String {
        let cell = &row.cell;
        let mut cells = vec![
            cell.bytes.to_string(),
            cell.count.to_string(),
            cell.dtype.name().to_owned(),
            cell.op.map_or("none", |op| op.name()).to_owned(),
            cell.root.map_or("-1".to_owned(), |root| root.to_string()),
        ];
        for timing in [&row.out, &row.in_place] {
            match timing {
                None => cells.extend(["N/A"; 4].map(str::to_owned)),
                Some(timing) => cells.extend([
                    time(timing.median_us),
                    format!("{:.2}", cell.algbw(timing.median_us)),
                    format!("{:.2}", cell.busbw(timing.median_us, self.nranks)),
                    timing.wrong.map_or("N/A".to_owned(), |wrong| wrong.to_string()),
                ]),
            }
        }
        let p99 = |timing: &Timing| time(timing.latency.spread.p99);
        for timing in [&row.out, &row.in_place] {
            cells.push(timing.as_ref().map_or("N/A".to_owned(), p99));
        }
        if let (true, Some((_, timing))) = (self.per_iter, row.timings().next()) {
            let spread = &timing.latency.spread;
            cells.extend([time(spread.min), time(spread.max), format!("{:.1}", spread.cv_percent())]);
        }
        cells.extend([row.way.algorithm.clone(), row.way.channels.to_string(), row.way.transport.clone()]);
        if self.timestamps {
            cells.push(moment::utc(row.finished));
        }
        let aligned = cells.iter().zip(self.columns());
        aligned.map(|(cell, (_, _, width))| format!(" {cell:>width$}")).collect::<String>() + "\n"
    }
    /// The lines below the rows.
    pub(crate) fn foot(&self, total: &Total) -> String {
        let verdict = match total.wrong() {
            None => "N/A (not checked)".to_owned(),
            Some(0) => "0 OK".to_owned(),
            Some(wrong) => format!("{wrong} FAILED"),
        };
        format!(
            "# Out of bounds values : {verdict}\n# Avg bus bandwidth    : {:.6}\n#\n",
            total.average_busbw()
        )
    }

    fn columns(&self) -> Vec<Column> {
        let mut columns = [&CELL[..], &TIMING, &TIMING, &LATENCY].concat();
        if self.per_iter {
            columns.extend(SPREAD);
        }
        columns.extend(WAY);
        if self.timestamps {
            columns.extend(TIMESTAMP);
        }
        columns
    }
}

/// Microseconds with about four digits, as nccl-tests shows them.
fn time(us: f64) -> String {
    match us {
        _ if us >= 10_000.0 => format!("{us:.0}"),
        _ if us >= 100.0 => format!("{us:.1}"),
        _ => format!("{us:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::row::sample, *};

    const PLAIN: Table = Table { nranks: 4, per_iter: false, timestamps: false };

    #[test]
    fn the_first_columns_are_those_of_nccl_tests() {
        let titles: Vec<String> =
            PLAIN.head().lines().nth(1).unwrap().split_whitespace().map(str::to_owned).collect();
        let want = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong p99 p99-in \
                    algorithm ch transport";
        assert_eq!(titles.join(" "), want);
    }

    #[test]
    fn rows_stand_below_their_titles() {
        let head = PLAIN.head();
        let row = PLAIN.row(&sample::row());
        let words: Vec<&str> = row.split_whitespace().collect();
        let want = "1048576 262144 float sum -1 1048.6 1.00 1.50 0 524.3 2.00 3.00 3 1050.6 526.3 ring 2 tcp";
        assert_eq!(words.join(" "), want);
        let ends = |line: &str, word: &str| line.find(word).unwrap() + word.len();
        let titles = head.lines().nth(1).unwrap();
        for (title, value) in
            [("size", "1048576"), ("type", "float"), ("p99-in", "526.3"), ("transport", "tcp")]
        {
            assert_eq!(ends(titles, title), ends(&row, value), "{title}\n{head}{row}");
        }
    }

    #[test]
    fn what_was_not_measured_is_not_available() {
        let mut row = sample::row();
        row.out = None;
        row.cell.root = Some(3);
        let text = PLAIN.row(&row);
        assert_eq!(text.matches("N/A").count(), 5, "{text}");
        assert!(text.contains("sum      3 "), "{text}");
    }

    #[test]
    fn more_columns_come_when_asked_for() {
        let table = Table { per_iter: true, timestamps: true, ..PLAIN };
        let head = table.head();
        assert!(head.contains("i_min     i_max   i_cv%") && head.contains("timestamp"), "{head}");
        assert!(table.row(&sample::row()).ends_with(" 2023-11-14 22:13:20\n"));
    }

    #[test]
    fn the_foot_says_whether_all_was_right() {
        let mut total = Total::default();
        assert!(PLAIN.foot(&total).contains("# Out of bounds values : N/A"));
        let mut row = sample::row();
        total.add(&row, 4);
        assert_eq!(
            PLAIN.foot(&total),
            "# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 2.250000\n#\n"
        );
        row.in_place = None;
        let mut total = Total::default();
        total.add(&row, 4);
        assert!(PLAIN.foot(&total).starts_with("# Out of bounds values : 0 OK\n"));
    }

    #[test]
    fn times_have_about_four_digits() {
        assert_eq!(
            (time(4.321), time(432.15), time(12345.6)),
            ("4.32".into(), "432.1".into(), "12346".into())
        );
    }
}
