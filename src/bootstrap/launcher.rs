//! What launchers say about a job, made a rendezvous.

use super::Rendezvous;
use crate::{env::Env, error::SetupError, plan::Rank};
use std::ops::RangeInclusive;

/// Ports that rank 0 chooses from, and that the others probe, where only the first is known.
const PROBED: u16 = 16;

/// Where this rank's number comes from.
struct Numbers {
    rank: Rank,
    nranks: u32,
    launcher: Launcher,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Launcher {
    /// `RONDEL_RANK` and `RONDEL_NRANKS`.
    Own,
    Torchrun,
    OpenMpi,
    Pmi,
    Slurm,
}

/// The variables of rank and number of ranks, in the order in which they count.
const NUMBERS: [(Launcher, &str, &str); 6] = [
    (Launcher::OpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    (Launcher::Torchrun, "RANK", "WORLD_SIZE"),
    (Launcher::Pmi, "PMI_RANK", "PMI_SIZE"),
    (Launcher::Slurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    (Launcher::Slurm, "SLURM_PROCID", "SLURM_NTASKS"),
    (Launcher::Pmi, "PMIX_RANK", "PMI_SIZE"),
];

impl Rendezvous {
    /// Where this process's environment says that the job meets:
    ///
    /// * `RONDEL_ROOT=host:port` with `RONDEL_RANK` and `RONDEL_NRANKS`, or with the numbers of any launcher below;
    /// * torchrun: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`. That port belongs to torchrun's own store, so rank 0
    ///   takes one of the 16 ports after it, and the others look for it there;
    /// * Slurm: rank 0 on the first host of the step, one of 16 ports derived from the job's and step's numbers;
    /// * Open MPI, MPICH, Intel MPI and other launchers with PMI, if all ranks are on one host: one of 16 ports derived
    ///   from the job's name or its launcher's process. On several hosts they need `RONDEL_ROOT`.
    ///
    /// The key is made of `RONDEL_KEY`, or else of the values above, which strangers may know.
    ///
    /// # Errors
    /// [`SetupError::Config`] for what is missing, wrong or contradictory: what was given, what was expected, what to do.
    pub fn from_env() -> Result<Self, SetupError> {
        Self::from_variables(&Env::from_process()?)
    }

    /// The same, or `None` where the environment names no rank and no root: this process was started alone.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_env_if_any() -> Result<Option<Self>, SetupError> {
        let env = Env::from_process()?;
        let silent = env.root.is_none() && env.rank.is_none() && env.nranks.is_none();
        if silent && !NUMBERS.iter().any(|(_, rank, _)| has(&env, rank)) {
            return Ok(None);
        }
        Self::from_variables(&env).map(Some)
    }

    /// The same with the variables that were parsed before.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_variables(env: &Env) -> Result<Self, SetupError> {
        let numbers = numbers(env)?;
        let Numbers { rank, nranks, .. } = numbers;
        let rendezvous = match &env.root {
            Some(root) => Self::root(root, rank, nranks)?,
            None => match numbers.launcher {
                Launcher::Torchrun => torchrun(env, rank, nranks)?,
                Launcher::Slurm => slurm(env, rank, nranks)?,
                Launcher::OpenMpi => one_host(env, &numbers, "OMPI_COMM_WORLD_LOCAL_SIZE")?,
                Launcher::Pmi if env.launcher.contains_key("PMI_LOCAL_SIZE") => {
                    one_host(env, &numbers, "PMI_LOCAL_SIZE")?
                }
                Launcher::Pmi => one_host(env, &numbers, "MPI_LOCALNRANKS")?,
                Launcher::Own => {
                    return Err(config(
                        "RONDEL_RANK and RONDEL_NRANKS are set, RONDEL_ROOT is not: set it to host:port on rank 0's \
                         host, the same for all ranks",
                    ));
                }
            },
        };
        Ok(match &env.key {
            Some(secret) => rendezvous.with_secret(secret),
            None => rendezvous,
        })
    }
}

fn config(what: impl Into<String>) -> SetupError {
    SetupError::Config(what.into())
}

fn numbers(env: &Env) -> Result<Numbers, SetupError> {
    let launched = NUMBERS.iter().find(|(_, rank, size)| has(env, rank) && has(env, size));
    let numbers = match (env.rank, env.nranks, launched) {
        (Some(rank), Some(nranks), _) => Numbers { rank, nranks, launcher: Launcher::Own },
        (None, None, Some((launcher, rank, size))) => {
            Numbers { rank: number(env, rank)?, nranks: number(env, size)?, launcher: *launcher }
        }
        (Some(rank), None, _) => {
            return Err(config(format!(
                "RONDEL_RANK is {rank}, RONDEL_NRANKS is not set: set both, or neither and use a launcher"
            )));
        }
        (None, Some(nranks), _) => {
            return Err(config(format!(
                "RONDEL_NRANKS is {nranks}, RONDEL_RANK is not set: set both, or neither and use a launcher"
            )));
        }
        (None, None, None) => return Err(config(nothing_found(env))),
    };
    if numbers.rank >= numbers.nranks {
        return Err(config(format!(
            "the environment says rank {} of {} ranks, expected a rank from 0 to {}",
            numbers.rank,
            numbers.nranks,
            i64::from(numbers.nranks) - 1
        )));
    }
    Ok(numbers)
}

fn nothing_found(env: &Env) -> String {
    let pairs = NUMBERS.iter().flat_map(|(_, rank, size)| [(rank, size), (size, rank)]);
    let half = pairs.into_iter().find(|(given, _)| has(env, given));
    let found = half
        .map_or("the environment does not say which rank this is".to_owned(), |(given, lacking)| {
            format!("{given} is {}, but {lacking} is not set", env.launcher[*given])
        });
    format!(
        "{found}: start the ranks with torchrun, mpirun or srun, or set RONDEL_RANK, RONDEL_NRANKS and RONDEL_ROOT \
         (host:port on rank 0's host) for each"
    )
}

fn has(env: &Env, name: &str) -> bool {
    env.launcher.contains_key(name)
}

fn text<'a>(env: &'a Env, name: &str, why: &str) -> Result<&'a str, SetupError> {
    let value = env.launcher.get(name).map(String::as_str);
    value.ok_or_else(|| {
        config(format!("{name} is not set, {why}: set it, or RONDEL_ROOT to host:port on rank 0's host"))
    })
}

fn number<T: std::str::FromStr>(env: &Env, name: &str) -> Result<T, SetupError> {
    let value = text(env, name, "expected a whole number")?;
    value
        .parse()
        .map_err(|_| config(format!("{name} is {value:?}, expected a whole number: correct it or unset it")))
}

fn torchrun(env: &Env, rank: Rank, nranks: u32) -> Result<Rendezvous, SetupError> {
    let why = "torchrun's ranks meet near it";
    let host = text(env, "MASTER_ADDR", why)?;
    text(env, "MASTER_PORT", why)?;
    let port: u16 = number(env, "MASTER_PORT")?;
    let Some(last) = port.checked_add(PROBED).filter(|_| port > 0) else {
        return Err(config(format!(
            "MASTER_PORT is {port}, expected 1 to {}, because the {PROBED} ports after it are used: choose a lower one",
            u16::MAX - PROBED
        )));
    };
    let value = |name: &str| env.launcher.get(name).map_or("", String::as_str);
    let public = [
        "torchrun",
        host,
        value("MASTER_PORT"),
        value("TORCHELASTIC_RUN_ID"),
        value("TORCHELASTIC_RESTART_COUNT"),
    ];
    Rendezvous::at(host.to_owned(), port + 1..=last, rank, nranks, &public)
}

fn slurm(env: &Env, rank: Rank, nranks: u32) -> Result<Rendezvous, SetupError> {
    let job = text(env, "SLURM_JOB_ID", "Slurm's ranks derive the root's port from it")?;
    let value = |name: &str| env.launcher.get(name).map_or("", String::as_str);
    let public =
        ["slurm", value("SLURM_CLUSTER_NAME"), job, value("SLURM_STEP_ID"), value("SLURM_RESTART_COUNT")];
    let nodes = env.launcher.get("SLURM_STEP_NODELIST").or_else(|| env.launcher.get("SLURM_JOB_NODELIST"));
    let alone = ["SLURM_STEP_NUM_NODES", "SLURM_NNODES"].into_iter().find(|name| has(env, name));
    let host = match nodes {
        _ if alone.is_some_and(|name| env.launcher[name] == "1") => "127.0.0.1".to_owned(),
        Some(nodes) => first_host(nodes).ok_or_else(|| {
            config(format!(
                "SLURM_STEP_NODELIST is {nodes:?}, expected names such as node[01-04]: set RONDEL_ROOT"
            ))
        })?,
        None => text(env, "SLURM_LAUNCH_NODE_IPADDR", "and no list of nodes either")?.to_owned(),
    };
    Rendezvous::at(host, derived_ports(&public), rank, nranks, &public)
}

/// `local_size`: the variable that says how many ranks this host has.
fn one_host(env: &Env, numbers: &Numbers, local_size: &str) -> Result<Rendezvous, SetupError> {
    let here: u32 = if has(env, local_size) { number(env, local_size)? } else { numbers.nranks };
    if here != numbers.nranks {
        return Err(config(format!(
            "{here} of {} ranks are on this host, and their launcher does not say where rank 0 is: set RONDEL_ROOT to \
             host:port on rank 0's host (mpirun -x RONDEL_ROOT=..., -genv RONDEL_ROOT ...)",
            numbers.nranks
        )));
    }
    // A wrapper around each rank has a process of its own, so the launcher's name for the job is better.
    let names = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"];
    let job = names.iter().find_map(|name| env.launcher.get(name)).cloned();
    let job = job.unwrap_or_else(|| format!("launcher {}", std::os::unix::process::parent_id()));
    let public = ["one host", &job];
    Rendezvous::at("127.0.0.1".to_owned(), derived_ports(&public), numbers.rank, numbers.nranks, &public)
}

/// A block of ports below those that systems give out by themselves.
fn derived_ports(public: &[&str]) -> RangeInclusive<u16> {
    const FIRST: u16 = 10_240;
    const BLOCKS: u64 = (32_768 - FIRST as u64) / PROBED as u64;
    let bytes = public.iter().flat_map(|value| value.bytes().chain([0]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let first = FIRST + ((hash >> 20) % BLOCKS) as u16 * PROBED;
    first..=first + PROBED - 1
}

/// The first name of a Slurm host list: `a1,b2`, `node[01-04,07]`, `rack[1-2]n[3-4]`.
fn first_host(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list.trim();
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        name.push_str(&rest[..end]);
        if !rest[end..].starts_with('[') {
            return Some(name).filter(|name| !name.is_empty());
        }
        let (inside, after) = rest[end + 1..].split_once(']')?;
        let first = inside.split([',', '-']).next().filter(|first| !first.is_empty())?;
        name.push_str(first);
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(vars: &[(&str, &str)]) -> Result<Rendezvous, SetupError> {
        let vars = vars.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        Rendezvous::from_variables(&Env::parse(vars).unwrap())
    }

    #[test]
    fn explicit_variables_name_the_place() {
        let own = [("RONDEL_ROOT", "10.0.0.1:29400"), ("RONDEL_RANK", "2"), ("RONDEL_NRANKS", "4")];
        let r = from(&own).unwrap();
        assert_eq!((r.rank(), r.nranks(), r.to_string().as_str()), (2, 4, "10.0.0.1:29400"));
        let launched = [("RONDEL_ROOT", "a:1"), ("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        assert_eq!(from(&launched).unwrap().rank(), 1);
    }

    #[test]
    fn torchrun_leaves_the_agents_port_alone() {
        let vars = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node1"), ("MASTER_PORT", "29500")];
        assert_eq!(from(&vars).unwrap().to_string(), "node1, ports 29501 to 29516");
    }

    #[test]
    fn slurm_meets_on_the_first_host_of_the_step() {
        let vars = [
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_NODELIST", "rack2n[08-11,20]"),
        ];
        assert!(from(&vars).unwrap().to_string().starts_with("rack2n08, ports "));
        for (list, first) in [("a1,b2", "a1"), ("x[3,5]y[1-2]", "x3y1"), ("solo", "solo")] {
            assert_eq!(first_host(list).as_deref(), Some(first));
        }
        assert!([first_host("["), first_host("a[]"), first_host("")].iter().all(Option::is_none));
    }

    #[test]
    fn ranks_of_one_host_derive_the_same_place_and_key() {
        let vars = |rank| {
            from(&[
                ("OMPI_COMM_WORLD_RANK", rank),
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                ("PMIX_NAMESPACE", "prterun-host-4711@1"),
            ])
            .unwrap()
        };
        let (a, b) = (vars("0"), vars("1"));
        assert_eq!((a.to_string(), a.key()), (b.to_string(), b.key()));
        let keyed = from(&[("PMI_RANK", "0"), ("PMI_SIZE", "1"), ("RONDEL_KEY", "x")]).unwrap();
        assert_ne!(a.key(), keyed.key());
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (vars, expected) in [
            (&[][..], "RONDEL_RANK, RONDEL_NRANKS and RONDEL_ROOT"),
            (&[("RANK", "0")], "RANK is 0, but WORLD_SIZE is not set"),
            (&[("RONDEL_RANK", "0")], "RONDEL_NRANKS is not set"),
            (&[("RONDEL_NRANKS", "2")], "RONDEL_RANK is not set"),
            (&[("RONDEL_RANK", "0"), ("RONDEL_NRANKS", "2")], "RONDEL_ROOT is not"),
            (&[("RONDEL_RANK", "2"), ("RONDEL_NRANKS", "2"), ("RONDEL_ROOT", "a:1")], "rank 2 of 2 ranks"),
            (&[("RONDEL_RANK", "0"), ("RONDEL_NRANKS", "2"), ("RONDEL_ROOT", "a")], "expected host:port"),
            (&[("RANK", "x"), ("WORLD_SIZE", "2")], "RANK is \"x\""),
            (&[("RANK", "0"), ("WORLD_SIZE", "2")], "MASTER_ADDR is not set"),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "65530")],
                "choose a lower one",
            ),
            (&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")], "SLURM_JOB_ID is not set"),
            (
                &[("PMI_RANK", "0"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2")],
                "2 of 4 ranks are on this host",
            ),
        ] {
            let error = from(vars).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
