//! Results as JSON, with the keys of nccl-tests.

use super::{
    buffer::Kind,
    measure::Timing,
    row::{Row, Total},
};
use crate::moment;
use rondel::comm::MemberName;
use serde::Serialize;
use std::collections::BTreeMap;

/// The whole file.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    version: &'static str,
    library: &'static str,
    start_time: String,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    nccl_version: Option<String>,
    config: Config,
    devices: Vec<Device>,
    results: Vec<Record>,
    out_of_bounds: OutOfBounds,
    average_bus_bandwidth: f64,
    errors: Vec<String>,
    end_time: String,
}

/// What was asked for.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Config {
    pub(crate) collective: &'static str,
    pub(crate) ranks: u32,
    pub(crate) minbytes: u64,
    pub(crate) maxbytes: u64,
    pub(crate) stepbytes: Option<u64>,
    pub(crate) stepfactor: Option<u64>,
    pub(crate) iters: Option<u64>,
    pub(crate) warmup_iters: u64,
    pub(crate) run_cycles: u64,
    pub(crate) check: u32,
    pub(crate) dirty: bool,
    pub(crate) buffers: Kind,
}

/// One rank.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Device {
    rank: u32,
    group: u32,
    pid: u32,
    hostname: String,
    device: u32,
    device_hex: &'static str,
    device_info: &'static str,
}

#[derive(Debug, Serialize)]
struct OutOfBounds {
    count: Option<u64>,
    okay: bool,
}

#[derive(Debug, Serialize)]
struct Record {
    size: u64,
    count: u64,
    r#type: &'static str,
    redop: &'static str,
    root: i64,
    algorithm: String,
    channels: u32,
    transport: String,
    out_of_place: Option<Half>,
    in_place: Option<Half>,
    #[serde(skip_serializing_if = "Option::is_none")]
    out_of_place_per_iter: Option<PerIter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_place_per_iter: Option<PerIter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<String>,
}

#[derive(Debug, Serialize)]
struct Half {
    time: f64,
    alg_bw: f64,
    bus_bw: f64,
    nwrong: Option<u64>,
    min_us: f64,
    max_us: f64,
    p50_us: f64,
    p99_us: f64,
    iters: u64,
}

#[derive(Debug, Serialize)]
struct PerIter {
    min_us: f64,
    max_us: f64,
    avg_us: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    stdev_us: f64,
    cv_pct: f64,
    times_us: Vec<f64>,
}

/// Collects rows until the end of the run.
#[derive(Debug)]
pub(crate) struct Collector {
    document: Document,
    per_iter: bool,
    timestamps: bool,
    nranks: u32,
}

impl Collector {
    /// Of a run that starts now on ranks with these host names and process ids.
    pub(crate) fn new(config: Config, members: &[MemberName], per_iter: bool, timestamps: bool) -> Self {
        let device = |(rank, member): (u32, &MemberName)| Device {
            rank,
            group: 0,
            pid: member.pid,
            hostname: member.hostname.clone(),
            device: 0,
            device_hex: "host",
            device_info: "host memory",
        };
        let document = Document {
            version: env!("CARGO_PKG_VERSION"),
            library: "rondel",
            start_time: moment::utc(moment::now()),
            args: std::env::args().take_while(|arg| arg != "--member").collect(),
            env: std::env::vars().filter(|(name, _)| is_shown(name)).collect(),
            nccl_version: None,
            devices: (0..).zip(members).map(device).collect(),
            results: Vec::new(),
            out_of_bounds: OutOfBounds { count: None, okay: true },
            average_bus_bandwidth: 0.0,
            errors: Vec::new(),
            end_time: String::new(),
            config,
        };
        let nranks = document.config.ranks;
        Collector { document, per_iter, timestamps, nranks }
    }
    /// Adds a row.
    pub(crate) fn add(&mut self, row: &Row) {
        let cell = &row.cell;
        let half = |timing: &Timing| Half {
            time: timing.median_us,
            alg_bw: cell.algbw(timing.median_us),
            bus_bw: cell.busbw(timing.median_us, self.nranks),
            nwrong: timing.wrong,
            min_us: timing.min_us,
            max_us: timing.max_us,
            p50_us: timing.latency.spread.p50,
            p99_us: timing.latency.spread.p99,
            iters: timing.iters,
        };
        let per_iter = |timing: &Option<Timing>| timing.as_ref().filter(|_| self.per_iter).map(per_iter);
        self.document.results.push(Record {
            size: cell.bytes,
            count: cell.count,
            r#type: cell.dtype.name(),
            redop: cell.op.map_or("none", |op| op.name()),
            root: cell.root.map_or(-1, i64::from),
            algorithm: row.way.algorithm.clone(),
            channels: row.way.channels,
            transport: row.way.transport.clone(),
            out_of_place: row.out.as_ref().map(half),
            in_place: row.in_place.as_ref().map(half),
            out_of_place_per_iter: per_iter(&row.out),
            in_place_per_iter: per_iter(&row.in_place),
            timestamp: self.timestamps.then(|| moment::utc(row.finished)),
        });
    }
    /// The text of the file with all rows so far. `errors`: why it ends with them, if it was to have more.
    pub(crate) fn document(&mut self, total: &Total, errors: &[&str]) -> String {
        let wrong = total.wrong();
        self.document.out_of_bounds = OutOfBounds { count: wrong, okay: wrong.unwrap_or(0) == 0 };
        self.document.average_bus_bandwidth = total.average_busbw();
        self.document.errors = errors.iter().map(|&error| error.to_owned()).collect();
        self.document.end_time = moment::utc(moment::now());
        let text = serde_json::to_string_pretty(&self.document).expect("plain data with string keys");
        text + "\n"
    }
}

fn per_iter(timing: &Timing) -> PerIter {
    let spread = &timing.latency.spread;
    PerIter {
        min_us: spread.min,
        max_us: spread.max,
        avg_us: spread.mean,
        p50_us: spread.p50,
        p95_us: spread.p95,
        p99_us: spread.p99,
        stdev_us: spread.stdev,
        cv_pct: spread.cv_percent(),
        times_us: timing.latency.times.clone(),
    }
}

/// Settings that explain a result; secrets are not among them.
fn is_shown(name: &str) -> bool {
    (name.starts_with("RONDEL_") || name.starts_with("NCCL_")) && name != "RONDEL_KEY"
}

#[cfg(test)]
mod tests {
    use super::{super::row::sample, *};
    use serde_json::Value;

    fn document(per_iter: bool) -> Value {
        let config = Config {
            collective: "all_reduce",
            ranks: 4,
            minbytes: 8,
            maxbytes: 1 << 20,
            stepbytes: None,
            stepfactor: Some(4),
            iters: None,
            warmup_iters: 0,
            run_cycles: 1,
            check: 1,
            dirty: false,
            buffers: Kind::Mapped,
        };
        let member = |hostname: &str, pid| MemberName { hostname: hostname.to_owned(), pid };
        let members = [member("left", 11), member("right", 12)];
        let mut collector = Collector::new(config, &members, per_iter, false);
        collector.add(&sample::row());
        let mut total = Total::default();
        total.add(&sample::row(), 4);
        serde_json::from_str(&collector.document(&total, &["rank 1 died"])).unwrap()
    }

    #[test]
    fn the_keys_are_those_of_nccl_tests() {
        let document = document(false);
        for key in ["version", "start_time", "args", "env", "nccl_version", "config", "end_time", "errors"] {
            assert!(document.get(key).is_some(), "{key}");
        }
        assert_eq!(document["errors"][0], "rank 1 died");
        assert_eq!(document["devices"][1]["hostname"], "right");
        assert_eq!(document["devices"][1]["pid"], 12);
        let result = &document["results"][0];
        assert_eq!(
            (&result["size"], &result["type"], &result["root"]),
            (&1048576.into(), &"float".into(), &(-1).into())
        );
        assert_eq!(result["out_of_place"]["bus_bw"], 1.5);
        assert_eq!(result["in_place"]["nwrong"], 3);
        assert!(result.get("out_of_place_per_iter").is_none());
        assert_eq!(
            (&document["out_of_bounds"]["count"], &document["out_of_bounds"]["okay"]),
            (&3.into(), &false.into())
        );
        assert_eq!(document["average_bus_bandwidth"], 2.25);
    }

    #[test]
    fn single_operations_are_listed_when_asked_for() {
        let result = &document(true)["results"][0]["out_of_place_per_iter"];
        assert_eq!(result["times_us"].as_array().unwrap().len(), 3);
        assert_eq!(result["min_us"], 1048.576);
    }

    #[test]
    fn the_key_of_the_job_is_never_written() {
        assert!(
            is_shown("RONDEL_LOG") && is_shown("NCCL_ALGO") && !is_shown("RONDEL_KEY") && !is_shown("HOME")
        );
    }
}
