//! How a communicator comes to be.

use super::{Communicator, Inner, MemberName};
use crate::{
    algo::Algorithm,
    bootstrap::{self, Card, Job, Member, Rendezvous, Watcher, WatcherConfig},
    cost::{Machine, tuner::Tuner},
    engine::{
        CommSpec, Engine, EngineConfig, MAX_CHANNELS, Path,
        progress::{Context, Patience, allowed_cpus},
    },
    env::Env,
    error::{Error, Result, SetupError},
    plan::{Rank, Shape},
};
use rondel_transport_api::{Advert, Config, Endpoint, Transport};
use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

/// Makes a [`Communicator`].
///
/// What is not set here is read from the `RONDEL_*` variables (see [`Env`]), and has a default where they are silent.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    timeout: Option<Duration>,
    join_timeout: Option<Duration>,
    stall_after: Option<Duration>,
    transports: Option<Vec<Arc<dyn Transport>>>,
    transport: Option<String>,
    algorithm: Option<String>,
    channels: Option<u32>,
    env: Option<Env>,
    abort: Option<Arc<AtomicBool>>,
}

/// What communicators that descend from one take over from it.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) fixed: Option<&'static Algorithm>,
    pub(super) channels: Option<u32>,
    /// For each rank of the job, how it is reached.
    pub(super) paths: Arc<[Option<Path>]>,
    pub(super) members: Arc<[Member]>,
}

impl Builder {
    /// Bounds every operation. Default: `RONDEL_TIMEOUT`, or 30 minutes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
    /// Bounds joining. Default: 60 s.
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = Some(timeout);
        self
    }
    /// After how long a waiting rank asks the others what they are doing. Default: `RONDEL_STALL_AFTER`, or 1 s.
    pub fn stall_after(mut self, after: Duration) -> Self {
        self.stall_after = Some(after);
        self
    }
    /// Transports to choose from, best first. Default: all that are built in.
    pub fn transports(mut self, transports: Vec<Arc<dyn Transport>>) -> Self {
        self.transports = Some(transports);
        self
    }
    /// Restricts the choice to the transport of this name. Default: `RONDEL_TRANSPORT`, or all.
    pub fn transport(mut self, name: &str) -> Self {
        self.transport = Some(name.to_owned());
        self
    }
    /// Prefers one algorithm, for the collectives that it does. Default: `RONDEL_ALGORITHM`, or the tuner's choice.
    pub fn algorithm(mut self, name: &str) -> Self {
        self.algorithm = Some(name.to_owned());
        self
    }
    /// Fixes the number of channels. Default: `RONDEL_CHANNELS`, or the tuner's choice.
    pub fn channels(mut self, channels: u32) -> Self {
        self.channels = Some(channels);
        self
    }
    /// Takes the `RONDEL_*` settings from here and not from the process's environment.
    pub fn env(mut self, env: Env) -> Self {
        self.env = Some(env);
        self
    }
    /// Joining ends with [`SetupError::Aborted`] soon after this becomes true.
    pub fn abort_flag(mut self, abort: Arc<AtomicBool>) -> Self {
        self.abort = Some(abort);
        self
    }

    /// Meets the other ranks.
    pub fn connect(self, rendezvous: Rendezvous) -> Result<Communicator> {
        self.join(rendezvous).map_err(|error| Error::Setup(Arc::new(error)))
    }

    fn join(self, rendezvous: Rendezvous) -> Result<Communicator, SetupError> {
        let started = Instant::now();
        let env = match &self.env {
            Some(env) => env.clone(),
            None => Env::from_process()?,
        };
        let fixed = self.named_algorithm(&env)?;
        let channels = self.channels.or(env.channels);
        if let Some(given) = channels.filter(|channels| !(1..=MAX_CHANNELS as u32).contains(channels)) {
            return Err(SetupError::Config(format!(
                "{given} channels were asked for, expected 1 to {MAX_CHANNELS}"
            )));
        }
        let watcher = Watcher::start(WatcherConfig {
            key: rendezvous.key().clone(),
            ports: env.ports.clone(),
            socket_ifname: env.socket_ifname.clone(),
            socket_family: env.socket_family,
            heartbeat: env.heartbeat,
            suspicion: env.suspicion,
            runtime_dir: env.runtime_dir.clone(),
        })?;
        let abort = self.abort.clone().unwrap_or_default();
        // A lane through shared memory has a socket and a bell.
        let lanes = u64::from(env.sockets_per_lane.max(2)) * channels.map_or(1, u64::from);
        let opened = bootstrap::provide_descriptors(rendezvous.rank(), rendezvous.nranks(), lanes)
            .and_then(|()| self.open(&env, &rendezvous, &watcher));
        let (endpoints, tried) =
            opened.inspect_err(|e| watcher.decline(&rendezvous, &e.to_string(), &abort))?;
        let ports: Vec<String> = endpoints.iter().map(|e| format!("{} ({})", e.transport, e.port)).collect();
        let card = Card { adverts: endpoints.iter().map(|e| e.endpoint.advert()).collect() };
        let deadline = started + self.join_timeout.unwrap_or(env.join_timeout);
        let job = watcher.join(&rendezvous, card, deadline, &abort)?;
        let paths = paths(&job, &endpoints, &tried)?;
        let config = EngineConfig {
            stall_after: self.stall_after.unwrap_or(env.stall_after),
            timeout: self.timeout.unwrap_or(env.timeout),
            ..EngineConfig::default()
        };
        let boxes = endpoints.into_iter().map(|open| open.endpoint).collect();
        let engine = Engine::new(config, boxes, Some(watcher.status().clone()));
        let here = job.members[job.rank as usize].host;
        let local = job.members.iter().filter(|member| member.host == here).count();
        let mut patience = Patience::for_ranks(local, allowed_cpus());
        patience.spin = env.spin.unwrap_or(patience.spin);
        let context = Context::new(engine, Some(watcher), patience).map_err(|error| {
            SetupError::Bootstrap(format!("cannot wait for events: {}", bootstrap::explained(&error)))
        })?;
        let settings = Settings { fixed, channels, paths: paths.into(), members: job.members.clone() };
        let everyone: Arc<[Rank]> = (0..job.members.len() as Rank).collect();
        let comm = Communicator::found(Arc::new(context), job.id, job.rank, everyone, settings);
        tracing::info!(
            "rank {} of {}: communicator {:#x} over {} on {} hosts, joined in {:.1} ms{}",
            comm.rank(),
            comm.nranks(),
            comm.inner.id,
            ports.join(", "),
            comm.inner.shape.nhosts(),
            started.elapsed().as_secs_f64() * 1e3,
            comm.inner.tuner.summary()
        );
        Ok(comm)
    }

    fn named_algorithm(&self, env: &Env) -> Result<Option<&'static Algorithm>, SetupError> {
        let in_env = env.algorithm.as_ref().or(env.nccl_algorithm.as_ref());
        let Some(name) = self.algorithm.as_ref().or(in_env) else { return Ok(None) };
        Algorithm::named(name).map(Some).ok_or_else(|| {
            let known: Vec<&str> = crate::algo::ALL.iter().map(|a| a.name).collect();
            SetupError::Config(format!(
                "unknown algorithm {name:?} (Builder::algorithm or RONDEL_ALGORITHM): use one of {}",
                known.join(", ")
            ))
        })
    }

    fn open(
        &self,
        env: &Env,
        rendezvous: &Rendezvous,
        watcher: &Watcher,
    ) -> Result<(Vec<Open>, Refused), SetupError> {
        let all = self.transports.clone().unwrap_or_else(built_in_transports);
        let wanted = self.transport.as_ref().or(env.transport.as_ref());
        let chosen: Vec<_> =
            all.iter().filter(|t| wanted.is_none_or(|name| t.name().eq_ignore_ascii_case(name))).collect();
        if chosen.is_empty() {
            let known: Vec<&str> = all.iter().map(|t| t.name()).collect();
            return Err(SetupError::Config(format!(
                "unknown transport {:?} (Builder::transport or RONDEL_TRANSPORT): use one of {}",
                wanted.map_or("", String::as_str),
                known.join(", ")
            )));
        }
        let config = Config {
            key: rendezvous.key().clone(),
            rank: rendezvous.rank(),
            acceptor: watcher.acceptor().clone(),
            linger: Duration::from_millis(500),
            silence: env.suspicion,
            socket_ifname: env.socket_ifname.clone(),
            socket_family: env.socket_family,
            sockets_per_lane: env.sockets_per_lane,
        };
        let (mut endpoints, mut tried) = (Vec::new(), Vec::new());
        for transport in chosen {
            let port = match transport.discover(&config) {
                Ok(ports) if !ports.is_empty() => ports.into_iter().next().expect("not empty"),
                Ok(_) => {
                    tried.push((transport.name().to_owned(), "no port was found".to_owned()));
                    continue;
                }
                Err(why) => {
                    tried.push((transport.name().to_owned(), why.reason));
                    continue;
                }
            };
            match transport.open(&port, &config) {
                Ok(endpoint) => {
                    endpoints.push(Open { endpoint, transport: transport.name(), port: port.name });
                }
                Err(error) => tried.push((transport.name().to_owned(), format!("{}: {error}", port.name))),
            }
        }
        if endpoints.is_empty() && rendezvous.nranks() > 1 {
            return Err(SetupError::NoTransport(tried));
        }
        Ok((endpoints, tried))
    }
}

/// Transports that cannot be used, each with the reason.
type Refused = Vec<(String, String)>;

struct Open {
    endpoint: Box<dyn Endpoint>,
    transport: &'static str,
    port: String,
}

/// The transports of this build, best first.
pub fn built_in_transports() -> Vec<Arc<dyn Transport>> {
    vec![Arc::new(rondel_shm::ShmTransport), Arc::new(rondel_tcp::TcpTransport)]
}

/// For each rank of the job, the endpoint that reaches it. Both ends choose by the lower rank's preference.
fn paths(job: &Job, endpoints: &[Open], tried: &[(String, String)]) -> Result<Vec<Option<Path>>, SetupError> {
    let path_to = |peer: &Member| -> Result<Option<Path>, SetupError> {
        if peer.rank == job.rank {
            return Ok(None);
        }
        let mut pairs: Vec<(usize, usize, &Advert)> = Vec::new();
        for (ours, open) in endpoints.iter().enumerate() {
            for (theirs, advert) in peer.card.adverts.iter().enumerate() {
                if advert.transport == open.transport && open.endpoint.reaches(advert).is_some() {
                    pairs.push((ours, theirs, advert));
                }
            }
        }
        let lower = job.rank < peer.rank;
        let best = pairs
            .into_iter()
            .min_by_key(|&(ours, theirs, _)| if lower { (ours, theirs) } else { (theirs, ours) });
        match best {
            Some((endpoint, _, advert)) => {
                Ok(Some(Path { endpoint, advert: advert.clone(), transport: endpoints[endpoint].transport }))
            }
            None => Err(SetupError::NoPath {
                from: job.rank,
                to: peer.rank,
                tried: refusals(peer, endpoints, tried),
            }),
        }
    };
    job.members.iter().map(path_to).collect()
}

/// What the ranks run on and talk over, judged by what all of them know alike: within a host, ranks whose best transport is
/// shared memory reach each other through it, since both stand for one kernel and one network namespace.
fn machine_of(members: &[&Member]) -> Machine {
    let shares_memory = |member: &&Member| {
        member.card.adverts.first().is_some_and(|advert| advert.transport == rondel_shm::NAME)
    };
    if members.iter().all(shares_memory) { Machine::sharing_memory() } else { Machine::default() }
}

fn refusals(peer: &Member, endpoints: &[Open], tried: &[(String, String)]) -> Vec<(String, String)> {
    let theirs: Vec<&str> = peer.card.adverts.iter().map(|a| a.transport.as_str()).collect();
    let not_reached = endpoints.iter().map(|open| {
        let why = if theirs.contains(&open.transport) {
            "the two addresses do not reach each other".to_owned()
        } else {
            format!("rank {} on {} does not offer it", peer.rank, peer.hostname)
        };
        (open.transport.to_owned(), why)
    });
    not_reached.chain(tried.iter().cloned()).collect()
}

impl Communicator {
    /// Makes a communicator of ranks of the job: every one of them calls this with the same arguments.
    pub(super) fn found(
        context: Arc<Context>,
        id: u64,
        rank: Rank,
        job_ranks: Arc<[Rank]>,
        settings: Settings,
    ) -> Communicator {
        let members: Vec<&Member> = job_ranks.iter().map(|&r| &settings.members[r as usize]).collect();
        let mut hosts: Vec<[u8; 16]> = Vec::new();
        let host_of = |member: &&Member| match hosts.iter().position(|host| *host == member.host) {
            Some(known) => known as u32,
            None => {
                hosts.push(member.host);
                hosts.len() as u32 - 1
            }
        };
        let hosts: Box<[u32]> = members.iter().map(host_of).collect();
        let shape = Shape { order: (0..members.len() as Rank).collect(), hosts, root: 0 };
        let tuner =
            Arc::new(Tuner::for_machine(&shape, &machine_of(&members), settings.fixed, settings.channels));
        let paths: Vec<Option<Path>> =
            job_ranks.iter().map(|&r| settings.paths[r as usize].clone()).collect();
        let mut transports: Vec<&str> = paths.iter().flatten().map(|path| path.transport).collect();
        transports.sort_unstable();
        transports.dedup();
        let transport = if transports.is_empty() { "none".to_owned() } else { transports.join("+") };
        let routes = tuner.clone();
        let names = members
            .iter()
            .map(|member| MemberName { hostname: member.hostname.clone(), pid: member.pid })
            .collect();
        let spec = CommSpec {
            id,
            rank,
            members: job_ranks.clone(),
            paths,
            shape: shape.clone(),
            table: tuner.version(),
            routes: Box::new(move |collective, bytes| routes.route(collective, bytes)),
        };
        let comm = context.with_engine(|engine| engine.add_communicator(spec));
        let splits = std::sync::atomic::AtomicU32::new(0);
        let inner = Inner {
            context,
            comm,
            id,
            rank,
            members: names,
            job_ranks,
            shape,
            transport,
            tuner,
            settings,
            splits,
            pid: std::process::id(),
        };
        Communicator { inner: Arc::new(inner) }
    }
}
