//! A rank's side of joining: finds the root, says who it is, waits for the table.

use super::{
    framed::Framed,
    poller::wait_for,
    wire::{Join, Message, Seat},
};
use crate::{error::SetupError, plan::Rank};
use rondel_transport_api::handshake::{Handshake, HandshakeError, Hello, Key, Purpose};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// How often a blocked rank looks whether it was aborted.
const ABORT_CHECK: Duration = Duration::from_millis(50);
/// How long one address may take to connect, and to shake hands, while there is more to try.
const ATTEMPT: Duration = Duration::from_secs(2);
/// The first pause between attempts, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(250));
/// How long after its own deadline a rank waits for the root's list of missing ranks.
const LAST_WORD: Duration = Duration::from_secs(1);

/// A rank on its way into the job.
#[derive(Debug)]
pub(crate) struct Joining<'a> {
    pub(crate) key: &'a Key,
    pub(crate) nranks: u32,
    pub(crate) seat: Seat,
    /// Why it comes only to say that it cannot take part.
    pub(crate) obstacle: Option<&'a str>,
    pub(crate) deadline: Instant,
    pub(crate) abort: &'a AtomicBool,
    /// Another job may answer where the root was expected: that is no error, the next address is tried.
    pub(crate) probing: bool,
    /// Where the root is, in words.
    pub(crate) place: String,
}

/// What the root said in the end.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) job: u64,
    pub(crate) seats: Vec<Seat>,
}

/// Why one attempt came to nothing.
enum Setback {
    /// It may work later or elsewhere.
    Retry(String),
    Final(SetupError),
}

impl From<SetupError> for Setback {
    fn from(e: SetupError) -> Self {
        Setback::Final(e)
    }
}
impl From<io::Error> for Setback {
    fn from(e: io::Error) -> Self {
        Setback::Retry(e.to_string())
    }
}

impl Joining<'_> {
    /// Tries the addresses that `find` gives, again and again, until the root has answered or the deadline is over.
    pub(crate) fn run(
        mut self,
        mut find: impl FnMut() -> Result<Vec<SocketAddr>, String>,
    ) -> Result<Joined, SetupError> {
        let began = Instant::now();
        let mut pause = PAUSE.0;
        loop {
            let mut seen = Vec::new();
            match find() {
                Ok(addresses) => {
                    for address in addresses {
                        match self.attempt(address) {
                            Ok(joined) => return Ok(joined),
                            Err(Setback::Final(e)) => return Err(e),
                            Err(Setback::Retry(why)) => seen.push(format!("{address}: {why}")),
                        }
                    }
                }
                Err(why) => seen.push(why),
            }
            self.check_abort()?;
            if Instant::now() >= self.deadline {
                return Err(self.unreachable(began, &seen));
            }
            std::thread::sleep(pause.min(ABORT_CHECK));
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    fn unreachable(&self, began: Instant, seen: &[String]) -> SetupError {
        SetupError::Bootstrap(format!(
            "rank {} of {} could not join at {} within {:.1} s ({}). {}",
            self.seat.member.rank,
            self.nranks,
            self.place,
            began.elapsed().as_secs_f64(),
            if seen.is_empty() { "it has no address".to_owned() } else { seen.join("; ") },
            match self.seat.member.rank {
                // Rank 0 is the root, unless something else holds its port already.
                0 => "The port is held by a process that is not this job's root: choose another port",
                _ => "Start rank 0, check that this address is its own and that no firewall is between",
            }
        ))
    }

    fn check_abort(&self) -> Result<(), SetupError> {
        if self.abort.load(Ordering::Relaxed) { Err(SetupError::Aborted) } else { Ok(()) }
    }

    fn attempt(&mut self, address: SocketAddr) -> Result<Joined, Setback> {
        let until = (Instant::now() + ATTEMPT).min(self.deadline);
        let stream = self.connect(address, until)?;
        self.prefer(stream.local_addr()?);
        self.shake_hands(&stream, until)?;
        self.converse(Framed::new(stream))
    }

    fn connect(&self, address: SocketAddr, until: Instant) -> Result<TcpStream, Setback> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => {
                self.wait(&socket, true, until)?;
                if let Some(e) = socket.take_error()? {
                    return Err(e.into());
                }
            }
            Err(e) => return Err(e.into()),
        }
        Ok(socket.into())
    }

    /// The address that the way to the root starts from is the one that the others reach best.
    fn prefer(&mut self, local: SocketAddr) {
        let addresses = &mut self.seat.member.addresses;
        if let Some(best) = addresses.iter().position(|a| a.ip() == local.ip()) {
            addresses[..=best].rotate_right(1);
        }
    }

    fn wait(&self, on: &impl AsFd, writing: bool, until: Instant) -> Result<(), Setback> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if wait_for(on.as_fd(), writing, left.min(ABORT_CHECK))? {
                return Ok(());
            }
            self.check_abort()?;
            if left.is_zero() {
                return Err(Setback::Retry("no answer within the time".into()));
            }
        }
    }

    fn shake_hands(&self, mut stream: &TcpStream, until: Instant) -> Result<(), Setback> {
        let hello = Hello { rank: self.seat.member.rank, purpose: Purpose::Join };
        let mut handshake = Handshake::client(self.key, hello);
        loop {
            while !handshake.output().is_empty() {
                let n = stream.write(handshake.output())?;
                handshake.sent(n);
            }
            if handshake.is_done() {
                return Ok(());
            }
            self.wait(stream, false, until)?;
            let mut bytes = [0; 512];
            let wanted = handshake.wants().min(bytes.len());
            let n = match stream.read(&mut bytes[..wanted]) {
                Ok(0) => return Err(Setback::Retry("it closed the connection within the handshake".into())),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(e) => return Err(e.into()),
            };
            if let Err(e) = handshake.handle_input(&bytes[..n]) {
                // The last word is for the peer's log; whether it arrives does not matter here.
                let _ = stream.write(handshake.output());
                return Err(self.judge(&e));
            }
        }
    }

    /// A wrong key or version where exactly one root can be is final: waiting would not mend it.
    fn judge(&self, error: &HandshakeError) -> Setback {
        match error {
            HandshakeError::Key | HandshakeError::Version { .. } if !self.probing => {
                Setback::Final(SetupError::Bootstrap(format!(
                    "rank {} cannot join at {}: {error}. If two jobs run there, give each its own address",
                    self.seat.member.rank, self.place
                )))
            }
            _ => Setback::Retry(error.to_string()),
        }
    }

    fn converse(&self, mut framed: Framed) -> Result<Joined, Setback> {
        let patience = self.deadline.saturating_duration_since(Instant::now());
        framed.push(&Message::Join(Join {
            nranks: self.nranks,
            patience,
            seat: self.seat.clone(),
            obstacle: self.obstacle.map(str::to_owned),
        }));
        let until = self.deadline + LAST_WORD;
        loop {
            framed.flush()?;
            self.wait(&framed, framed.is_clogged(), until)?;
            framed.fill()?;
            match framed.next().map_err(|e| Setback::Retry(e.to_string()))? {
                Some(message) => return self.conclude(message),
                None if framed.has_ended() => {
                    return Err(Setback::Retry("the root closed the connection before it answered".into()));
                }
                None => {}
            }
        }
    }

    fn conclude(&self, message: Message) -> Result<Joined, Setback> {
        let rank = self.seat.member.rank;
        match message {
            Message::Table { job, seats } => {
                let sound = seats.len() == self.nranks as usize
                    && seats.iter().zip(0..).all(|(seat, i): (&Seat, Rank)| seat.member.rank == i);
                if !sound {
                    let what = format!("the root's table does not list the ranks 0 to {}", self.nranks - 1);
                    return Err(SetupError::Bootstrap(what).into());
                }
                Ok(Joined { job, seats })
            }
            Message::Rejected(why) => Err(SetupError::Bootstrap(format!(
                "the root at {} turned rank {rank} away: {why}",
                self.place
            ))
            .into()),
            Message::Missing { ranks, waited } => {
                Err(SetupError::Missing { ranks, nranks: self.nranks, waited, root: self.place.clone() }
                    .into())
            }
            other => {
                Err(Setback::Retry(format!("the root said something that has no place here: {other:?}")))
            }
        }
    }
}
