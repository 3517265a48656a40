//! Who drives the engine, and how the others wait.
//!
//! One lock, and the waiter drives: a blocking call costs no switch of threads. While one thread drives, other waiters
//! park; a driver that leaves wakes one. Nobody sleeps holding the lock.
//!
//! Waiting goes in three stages: spin a little, yield for a while, then arm all endpoints and sleep in epoll. More
//! spinning pays only where every local rank has a CPU of its own.

use super::{CommId, Command, Engine, OperationId, Submission, Submitted};
use crate::{bootstrap::Watcher, error::Result};
use std::{
    fmt, io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a waiter spins and yields before it sleeps, in looks at the endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Looks without giving up the CPU.
    pub spin: u32,
    /// Looks with a yield between them.
    pub yields: u32,
}

impl Patience {
    /// For `local` ranks on this host that may use `cpus` CPUs.
    pub fn for_ranks(local: usize, cpus: usize) -> Self {
        // Measured with 4 ranks on 2 cores: spinning at all costs milliseconds, yielding costs nothing.
        if local <= cpus { Patience { spin: 2000, yields: 2000 } } else { Patience { spin: 3, yields: 1000 } }
    }
}

/// What a communicator and all that descend from it share: endpoints, watcher, one engine and its lock.
pub struct Context {
    state: Mutex<State>,
    /// Waiters that do not drive.
    turn: Condvar,
    /// Threads that want the lock while a driver spins with it.
    contenders: AtomicU32,
    /// Wakes drivers that sleep in epoll.
    kick: OwnedFd,
    epoll: OwnedFd,
    watcher: Option<Watcher>,
    patience: Patience,
    started: Instant,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("patience", &self.patience).finish_non_exhaustive()
    }
}

struct State {
    engine: Engine,
    /// A driver let somebody else have the lock for a moment, and goes on afterwards.
    driving: bool,
    /// Waiters on `turn`.
    parked: u32,
    /// Drivers asleep in epoll, which rely on the endpoints being armed.
    asleep: u32,
    looked: Duration,
}

/// How often a driver looks at the clock, in looks at the endpoints.
const LOOKS_PER_CLOCK: u32 = 64;
/// How often it looks after operations that wait.
const VIGIL_EVERY: Duration = Duration::from_millis(10);
/// How long a sleeping driver stays away from its vigil.
const SLEEP: Duration = Duration::from_millis(50);
/// How often a driver yields to those who want the lock before it takes it back.
const YIELDS_TO_CONTENDERS: u32 = 1000;

impl Context {
    /// Takes an engine and its watcher into service.
    pub fn new(engine: Engine, watcher: Option<Watcher>, patience: Patience) -> io::Result<Self> {
        let kick = eventfd()?;
        let epoll = epoll()?;
        watch(&epoll, kick.as_raw_fd())?;
        for port in &engine.ports {
            watch(&epoll, port.endpoint.wakeup().as_raw_fd())?;
        }
        if let Some(watcher) = &watcher {
            watch(&epoll, watcher.wakeup().as_raw_fd())?;
        }
        let state = State { engine, driving: false, parked: 0, asleep: 0, looked: Duration::ZERO };
        Ok(Self {
            state: Mutex::new(state),
            turn: Condvar::new(),
            contenders: AtomicU32::new(0),
            kick,
            epoll,
            watcher,
            patience,
            started: Instant::now(),
        })
    }

    /// The thread that watches over the other ranks; a single rank has none.
    pub fn watcher(&self) -> Option<&Watcher> {
        self.watcher.as_ref()
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        match self.state.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.contenders.fetch_add(1, Ordering::SeqCst);
                let guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                self.contenders.fetch_sub(1, Ordering::SeqCst);
                guard
            }
        }
    }

    /// Calls `f` with the engine; what it starts moves on as soon as somebody drives.
    pub fn with_engine<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        let mut state = self.lock();
        state.engine.now = self.now();
        let result = f(&mut state.engine);
        self.exchange(&mut state.engine);
        state.engine.pause();
        self.wake_driver(state);
        result
    }

    /// Starts an operation and waits until it is over.
    ///
    /// # Safety
    /// The submission's buffers are valid and nobody else touches them until this returns.
    pub unsafe fn run(&self, comm: CommId, submission: Submission) -> Result<()> {
        let mut state = self.lock();
        let pause = |looks: u32| {
            if looks <= self.patience.spin { std::hint::spin_loop() } else { std::thread::yield_now() }
        };
        // SAFETY: the caller's promise; we return when the operation is over.
        let submitted = unsafe { state.engine.run(comm, submission, || self.now(), pause) };
        match submitted {
            Ok(Submitted::Over) => {
                self.exchange(&mut state.engine);
                self.leave(state);
                Ok(())
            }
            Ok(Submitted::Started(operation)) => self.wait_with(state, operation),
            Err(error) => {
                self.exchange(&mut state.engine);
                Err(error)
            }
        }
    }

    /// Starts an operation.
    ///
    /// # Safety
    /// The submission's buffers are valid and nobody else touches them until [`wait`](Context::wait) has returned for it.
    pub unsafe fn start(&self, comm: CommId, submission: Submission) -> Result<OperationId> {
        // SAFETY: the caller's promise.
        let start = |engine: &mut Engine| unsafe {
            let operation = engine.submit(comm, submission)?;
            engine.step(engine.now);
            Ok(operation)
        };
        self.with_engine(start)
    }

    /// Waits until an operation is over, and takes its result.
    pub fn wait(&self, operation: OperationId) -> Result<()> {
        self.wait_with(self.lock(), operation)
    }

    /// Makes some progress; the operation's result if it is over now.
    pub fn test(&self, operation: OperationId) -> Option<Result<()>> {
        self.with_engine(|engine| {
            engine.step(engine.now);
            engine.take_outcome(operation)
        })
    }

    /// Drives until `done` or for at most `bound`. For leaving: nobody waits for an operation.
    pub fn drive_until(&self, bound: Duration, mut done: impl FnMut(&Engine) -> bool) {
        let end = self.now() + bound;
        let mut state = self.lock();
        while !done(&state.engine) && self.now() < end {
            let now = self.now();
            if !state.engine.step(now) {
                state.engine.pause();
                drop(state);
                std::thread::sleep(Duration::from_micros(200));
                state = self.lock();
            }
        }
    }

    fn wait_with<'a>(&'a self, mut state: MutexGuard<'a, State>, operation: OperationId) -> Result<()> {
        loop {
            if let Some(outcome) = state.engine.take_outcome(operation) {
                self.exchange(&mut state.engine);
                self.leave(state);
                return outcome;
            }
            if state.driving {
                state.parked += 1;
                state = self.turn.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.parked -= 1;
            } else {
                state = self.drive(state, operation);
            }
        }
    }

    /// Drives until an operation is over, or somebody else drives.
    fn drive<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        operation: OperationId,
    ) -> MutexGuard<'a, State> {
        let (mut idle, mut looks) = (0, 0u32);
        loop {
            looks = looks.wrapping_add(1);
            let now = state.engine.now;
            let moved = state.engine.step(now);
            self.exchange(&mut state.engine);
            if state.engine.is_over(operation) {
                return state;
            }
            if moved && state.parked > 0 {
                self.turn.notify_all();
            }
            idle = if moved { 0 } else { idle + 1 };
            if looks % LOOKS_PER_CLOCK == 0 {
                self.look_around(&mut state);
            }
            if self.contenders.load(Ordering::Relaxed) > 0 {
                state = self.step_aside(state);
            }
            if idle <= self.patience.spin {
                std::hint::spin_loop();
            } else if idle <= self.patience.spin + self.patience.yields {
                std::thread::yield_now();
            } else {
                idle = 0;
                state = self.sleep(state);
                if state.driving {
                    return state;
                }
            }
        }
    }

    fn look_around(&self, state: &mut State) {
        let now = self.now();
        state.engine.now = now;
        if now.saturating_sub(state.looked) >= VIGIL_EVERY {
            state.looked = now;
            state.engine.keep_vigil(now);
        }
    }

    /// Lets those who want the lock have it, and goes on driving.
    fn step_aside<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.driving = true;
        drop(state);
        for _ in 0..YIELDS_TO_CONTENDERS {
            if self.contenders.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.driving = false;
        state
    }

    /// Sleeps until something wakes an endpoint, the watcher or another thread of ours.
    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        for port in &mut state.engine.ports {
            if let Err(error) = port.endpoint.arm() {
                tracing::warn!("cannot arm an endpoint, polling instead: {error}");
            }
        }
        // What happened before the arming wakes nobody: look once more.
        let now = self.now();
        if state.engine.step(now) || self.exchange(&mut state.engine) {
            return state;
        }
        // Those whose operations ended while nothing moved must learn of it, and who parks relies on a driver that is
        // awake.
        if state.parked > 0 {
            self.turn.notify_all();
        }
        state.asleep += 1;
        drop(state);
        wait_readable(&self.epoll, SLEEP);
        let mut state = self.lock();
        state.asleep -= 1;
        drain(&self.kick);
        self.look_around(&mut state);
        state
    }

    /// A waiter leaves: another one must drive, and sleepers must arm the endpoints anew.
    fn leave(&self, mut state: MutexGuard<'_, State>) {
        state.engine.pause();
        if state.parked > 0 {
            self.turn.notify_one();
        }
        self.wake_driver(state);
    }

    fn wake_driver(&self, state: MutexGuard<'_, State>) {
        let asleep = state.asleep > 0;
        drop(state);
        if asleep {
            signal(&self.kick);
        }
    }

    /// Carries commands to the watcher and notices to the engine. Returns whether there were notices.
    fn exchange(&self, engine: &mut Engine) -> bool {
        let Some(watcher) = &self.watcher else { return false };
        let mut any = false;
        while let Some(notice) = watcher.notice() {
            engine.handle_notice(notice);
            any = true;
        }
        if engine.has_commands() {
            for command in engine.take_commands() {
                match command {
                    Command::Offer { to, offer } => watcher.send_offer(to, offer),
                    Command::Inquire { about, asked } => watcher.inquire(about, asked),
                    Command::Declare(failure) => watcher.declare(&failure),
                }
            }
        }
        any
    }
}

fn owned(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave it to us, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

fn watch(epoll: &OwnedFd, descriptor: RawFd) -> io::Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: `event` is valid for the call.
    let answer =
        unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, descriptor, &raw mut event) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn wait_readable(epoll: &OwnedFd, bound: Duration) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: `event` has room for the one event asked for. An interrupted wait is a short sleep.
    unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, bound.as_millis() as i32) };
}

fn signal(eventfd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: `one` is 8 readable bytes. A full counter is readable already, which is all that is needed.
    unsafe { libc::write(eventfd.as_raw_fd(), (&raw const one).cast(), 8) };
}

fn drain(eventfd: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: `count` is 8 writable bytes. Nothing to read is fine: somebody else drained it.
    unsafe { libc::read(eventfd.as_raw_fd(), (&raw mut count).cast(), 8) };
}

/// CPUs that this process may use: its affinity, bounded by the cgroup's quota.
pub fn allowed_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
