//! The environment: every variable that rondel reads, in one place.
//!
//! Nothing else in rondel reads the process's environment. Whatever has a builder method can be set there too, and then
//! the builder's word counts.

use crate::error::SetupError;
use std::{collections::BTreeMap, ops::RangeInclusive, path::PathBuf, time::Duration};

/// What the environment says, with the defaults where it is silent. An empty variable counts as not set.
#[derive(Clone, Debug, PartialEq)]
pub struct Env {
    /// `RONDEL_LOG`: what is logged, as a filter such as `info` or `rondel=debug`. Default: not set (warnings).
    pub log: Option<String>,
    /// `RONDEL_ROOT`: `host:port` where rank 0 listens while the job is joined. Default: from the launcher.
    pub root: Option<String>,
    /// `RONDEL_RANK`: this process's rank, from 0. Default: from the launcher.
    pub rank: Option<u32>,
    /// `RONDEL_NRANKS`: ranks of the job. Default: from the launcher.
    pub nranks: Option<u32>,
    /// `RONDEL_KEY`: the secret that the job's ranks share, any text. Default: derived from the job's public values.
    pub key: Option<String>,
    /// `RONDEL_SOCKET_IFNAME` or `NCCL_SOCKET_IFNAME`: interfaces to use, such as `eth`, `=eth0` or `^docker,lo`.
    /// Default: by route and speed, no tunnels, no container bridges.
    pub socket_ifname: Option<String>,
    /// `RONDEL_SOCKET_FAMILY` or `NCCL_SOCKET_FAMILY`: `AF_INET` (or 4), `AF_INET6` (or 6). Default: both.
    pub socket_family: Option<u8>,
    /// `RONDEL_PORTS`: port or range of ports that a process listens on, such as `29500` or `29500-29600`. Each rank of a
    /// host needs one. Default: any free one.
    pub ports: Option<RangeInclusive<u16>>,
    /// `RONDEL_TIMEOUT`: seconds that one operation may take. Default: 1800.
    pub timeout: Duration,
    /// `RONDEL_JOIN_TIMEOUT`: seconds that joining may take. Default: 120.
    pub join_timeout: Duration,
    /// `RONDEL_STALL_AFTER`: seconds after which a waiting rank asks what the others are doing. Default: 1.
    pub stall_after: Duration,
    /// `RONDEL_HEARTBEAT`: seconds between two signs of life. Default: 0.5.
    pub heartbeat: Duration,
    /// `RONDEL_SUSPICION`: seconds of silence after which a rank is taken for dead. Default: 10.
    pub suspicion: Duration,
    /// `RONDEL_TRANSPORT`: the only transport to use, `shm` or `tcp`. Default: the best that reaches each peer.
    pub transport: Option<String>,
    /// `RONDEL_ALGORITHM`: the algorithm to prefer, such as `ring` or `tree`. Default: the tuner's choice.
    pub algorithm: Option<String>,
    /// `NCCL_ALGO`, where that is `Ring` or `Tree` alone, in small letters: the same, if there is no `RONDEL_ALGORITHM`.
    pub nccl_algorithm: Option<String>,
    /// `RONDEL_CHANNELS`: channels of an operation, 1 to 16. Default: the tuner's choice.
    pub channels: Option<u32>,
    /// `RONDEL_SOCKETS_PER_LANE` or `NCCL_NSOCKS_PERTHREAD`: sockets of a tcp lane, 1 to 16. Default: 1.
    pub sockets_per_lane: u8,
    /// `XDG_RUNTIME_DIR`: the user's directory for sockets, where `rondel status` finds this process. Default:
    /// `/tmp/rondel-<uid>` is used.
    pub runtime_dir: Option<PathBuf>,
    /// `RONDEL_SPIN`: how often a waiting thread looks before it yields. Default: 2000 where every local rank has a CPU,
    /// otherwise 20.
    pub spin: Option<u32>,
    /// What launchers say about the job, by the names of [`LAUNCHER_NAMES`].
    pub launcher: BTreeMap<&'static str, String>,
    /// What deserves a warning: unknown names, values that have no meaning here.
    pub warnings: Vec<String>,
}

/// The names of our own.
pub const NAMES: [&str; 18] = [
    "RONDEL_LOG",
    "RONDEL_ROOT",
    "RONDEL_RANK",
    "RONDEL_NRANKS",
    "RONDEL_KEY",
    "RONDEL_SOCKET_IFNAME",
    "RONDEL_SOCKET_FAMILY",
    "RONDEL_PORTS",
    "RONDEL_TIMEOUT",
    "RONDEL_JOIN_TIMEOUT",
    "RONDEL_STALL_AFTER",
    "RONDEL_HEARTBEAT",
    "RONDEL_SUSPICION",
    "RONDEL_TRANSPORT",
    "RONDEL_ALGORITHM",
    "RONDEL_CHANNELS",
    "RONDEL_SOCKETS_PER_LANE",
    "RONDEL_SPIN",
];

/// The names that launchers use: torchrun; Open MPI; PMIx; PMI (MPICH, Intel MPI); Slurm.
pub const LAUNCHER_NAMES: [&str; 29] = [
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "PMI_JOBID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_STEP_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_RESTART_COUNT",
    "SLURM_CLUSTER_NAME",
];

impl Env {
    /// What this process's environment says. Warnings are logged.
    ///
    /// # Errors
    /// [`SetupError::Config`] for a value without a meaning.
    pub fn from_process() -> Result<Self, SetupError> {
        // Names and values that are not text are none of ours.
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let env = Self::parse(std::env::vars_os().filter_map(text))?;
        for warning in &env.warnings {
            tracing::warn!("{warning}");
        }
        Ok(env)
    }

    /// What these variables say.
    ///
    /// # Errors
    /// [`SetupError::Config`] for a value without a meaning: its name, the value, and what was expected.
    pub fn parse(vars: impl IntoIterator<Item = (String, String)>) -> Result<Self, SetupError> {
        let vars: BTreeMap<String, String> =
            vars.into_iter().filter(|(_, value)| !value.trim().is_empty()).collect();
        let v = Variables(&vars);
        let seconds = |name, default| v.seconds(name, default);
        let mut warnings = unknown_names(&vars);
        let nccl_algorithm = v.text("NCCL_ALGO").and_then(|name| nccl_algorithm(&name, &mut warnings));
        Self {
            log: v.text("RONDEL_LOG"),
            root: v.text("RONDEL_ROOT"),
            rank: v.number("RONDEL_RANK", 0..=u64::from(u32::MAX))?,
            nranks: v.number("RONDEL_NRANKS", 1..=u64::from(u32::MAX))?,
            key: v.text("RONDEL_KEY"),
            socket_ifname: v.text("RONDEL_SOCKET_IFNAME").or_else(|| v.text("NCCL_SOCKET_IFNAME")),
            socket_family: v.family()?,
            ports: v.ports("RONDEL_PORTS")?,
            timeout: seconds("RONDEL_TIMEOUT", Duration::from_secs(1800))?,
            join_timeout: seconds("RONDEL_JOIN_TIMEOUT", Duration::from_secs(120))?,
            stall_after: seconds("RONDEL_STALL_AFTER", Duration::from_secs(1))?,
            heartbeat: seconds("RONDEL_HEARTBEAT", Duration::from_millis(500))?,
            suspicion: seconds("RONDEL_SUSPICION", Duration::from_secs(10))?,
            transport: v.text("RONDEL_TRANSPORT"),
            algorithm: v.text("RONDEL_ALGORITHM"),
            nccl_algorithm,
            channels: v.number("RONDEL_CHANNELS", 1..=16)?,
            sockets_per_lane: match v.number("RONDEL_SOCKETS_PER_LANE", 1..=16)? {
                Some(n) => n as u8,
                None => v.number("NCCL_NSOCKS_PERTHREAD", 1..=16)?.map_or(1, |n| n as u8),
            },
            runtime_dir: v.text("XDG_RUNTIME_DIR").map(PathBuf::from),
            spin: v.number("RONDEL_SPIN", 0..=u64::from(u32::MAX))?,
            launcher: LAUNCHER_NAMES.iter().filter_map(|name| Some((*name, v.text(name)?))).collect(),
            warnings,
        }
        .checked()
    }

    fn checked(self) -> Result<Self, SetupError> {
        if self.heartbeat * 2 > self.suspicion {
            return Err(SetupError::Config(format!(
                "RONDEL_HEARTBEAT is {:?} and RONDEL_SUSPICION {:?}, expected at least two heartbeats before a rank \
                 becomes suspect: lower the first or raise the second",
                self.heartbeat, self.suspicion
            )));
        }
        Ok(self)
    }
}

struct Variables<'a>(&'a BTreeMap<String, String>);

impl Variables<'_> {
    fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).map(|value| value.trim().to_owned())
    }
    fn number(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u32>, SetupError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match value.parse::<u64>() {
            Ok(number) if range.contains(&number) => Ok(Some(number as u32)),
            _ => Err(bad(name, &value, &format!("a whole number from {} to {}", range.start(), range.end()))),
        }
    }
    fn seconds(&self, name: &str, default: Duration) -> Result<Duration, SetupError> {
        let Some(value) = self.text(name) else { return Ok(default) };
        match value.parse::<f64>() {
            Ok(seconds) if (0.001..=31_536_000.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
            _ => Err(bad(name, &value, "seconds from 0.001 to 31536000, such as 30 or 0.5")),
        }
    }
    fn family(&self) -> Result<Option<u8>, SetupError> {
        for name in ["RONDEL_SOCKET_FAMILY", "NCCL_SOCKET_FAMILY"] {
            match self.text(name).as_deref() {
                None => {}
                Some("4" | "AF_INET") => return Ok(Some(4)),
                Some("6" | "AF_INET6") => return Ok(Some(6)),
                Some(other) => return Err(bad(name, other, "AF_INET (or 4) or AF_INET6 (or 6)")),
            }
        }
        Ok(None)
    }
    fn ports(&self, name: &str) -> Result<Option<RangeInclusive<u16>>, SetupError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        let (first, last) = value.split_once('-').unwrap_or((&value, &value));
        match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
            (Ok(0), Ok(0)) => Ok(None),
            (Ok(first), Ok(last)) if first > 0 && first <= last => Ok(Some(first..=last)),
            _ => Err(bad(name, &value, "a port such as 29500, a range such as 29500-29600, or 0 for any")),
        }
    }
}

fn bad(name: &str, value: &str, expected: &str) -> SetupError {
    SetupError::Config(format!("{name} is {value:?}, expected {expected}: correct it or unset it"))
}

/// NCCL's variable may hold lists, exclusions and rules per collective, which have no counterpart here.
fn nccl_algorithm(value: &str, warnings: &mut Vec<String>) -> Option<String> {
    let name = value.to_ascii_lowercase();
    if matches!(name.as_str(), "ring" | "tree") {
        return Some(name);
    }
    warnings
        .push(format!("NCCL_ALGO={value} is ignored: rondel takes Ring or Tree there, or RONDEL_ALGORITHM"));
    None
}

fn unknown_names(vars: &BTreeMap<String, String>) -> Vec<String> {
    let unknown = vars.keys().filter(|name| name.starts_with("RONDEL_") && !NAMES.contains(&name.as_str()));
    unknown
        .map(|name| match NAMES.iter().min_by_key(|known| distance(name, known)) {
            Some(nearest) => {
                format!("{name} is no variable of rondel and has no effect; did you mean {nearest}?")
            }
            None => format!("{name} is no variable of rondel and has no effect"),
        })
        .collect()
}

/// How many letters must be put in, taken out or replaced to get from one name to the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(vars: &[(&str, &str)]) -> Result<Env, SetupError> {
        Env::parse(vars.iter().map(|(name, value)| (name.to_string(), value.to_string())))
    }

    #[test]
    fn silence_gives_the_defaults() {
        let env = parse(&[("PATH", "/bin"), ("RONDEL_RANK", " ")]).unwrap();
        assert_eq!((env.rank, env.ports, env.sockets_per_lane), (None, None, 1));
        assert_eq!(
            (env.timeout.as_secs(), env.heartbeat.as_millis(), env.suspicion.as_secs()),
            (1800, 500, 10)
        );
        assert!(env.warnings.is_empty() && env.launcher.is_empty());
    }

    #[test]
    fn own_names_come_before_those_of_nccl() {
        let env = parse(&[
            ("NCCL_SOCKET_IFNAME", "ib"),
            ("RONDEL_SOCKET_IFNAME", "=eth0"),
            ("NCCL_SOCKET_FAMILY", "AF_INET6"),
            ("NCCL_NSOCKS_PERTHREAD", "4"),
            ("NCCL_ALGO", "Ring"),
            ("RONDEL_PORTS", "29500-29600"),
            ("RONDEL_HEARTBEAT", "0.25"),
        ])
        .unwrap();
        assert_eq!(env.socket_ifname.as_deref(), Some("=eth0"));
        assert_eq!(
            (env.socket_family, env.sockets_per_lane, env.nccl_algorithm.as_deref()),
            (Some(6), 4, Some("ring"))
        );
        assert_eq!((env.ports, env.heartbeat.as_millis()), (Some(29500..=29600), 250));
        let env = parse(&[("XDG_RUNTIME_DIR", "/run/user/1000")]).unwrap();
        assert_eq!(env.runtime_dir, Some(PathBuf::from("/run/user/1000")));
    }

    #[test]
    fn bad_values_are_named_with_what_was_expected() {
        for (name, value, expected) in [
            ("RONDEL_RANK", "-1", "whole number from 0"),
            ("RONDEL_NRANKS", "0", "whole number from 1"),
            ("RONDEL_PORTS", "9-8", "29500-29600"),
            ("RONDEL_TIMEOUT", "soon", "seconds from"),
            ("RONDEL_TIMEOUT", "NaN", "seconds from"),
            ("RONDEL_SOCKET_FAMILY", "5", "AF_INET6"),
            ("RONDEL_SOCKETS_PER_LANE", "17", "1 to 16"),
            ("RONDEL_SUSPICION", "0.5", "two heartbeats"),
        ] {
            let error = parse(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn unknown_names_get_the_nearest_known_one() {
        let env = parse(&[("RONDEL_TIMOUT", "3"), ("NCCL_ALGO", "^Tree")]).unwrap();
        assert_eq!(env.warnings.len(), 2);
        assert!(env.warnings[0].contains("did you mean RONDEL_TIMEOUT?"), "{:?}", env.warnings);
    }
}
