//! The root: where the ranks of a job say who they are, and get the table of all once everybody is there.

use super::{
    doorway::Doorway,
    framed::{Broken, Framed},
    poller::{Interest, Poller},
    wire::{Join, MAX_RANKS, Message, Seat},
};
use crate::plan::Rank;
use rondel_transport_api::handshake::{Hello, Purpose};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

/// How long answers may take to leave after the job is complete or given up.
const FAREWELL: Duration = Duration::from_secs(5);
/// The token of the doorway; guests count from 1.
const DOORWAY: u64 = 0;

/// Served by whoever has a loop to spare: readable (as a descriptor) when [`turn`](Self::turn) has something to do.
#[derive(Debug)]
pub(crate) struct Root {
    poller: Poller,
    doorway: Option<Doorway>,
    guests: BTreeMap<u64, Guest>,
    next: u64,
    /// Who has joined: which guest each rank is.
    seats: BTreeMap<Rank, u64>,
    /// The number of ranks, and who said so.
    nranks: Option<(u32, String)>,
    job: u64,
    since: Option<Instant>,
    over: Option<Instant>,
    /// Why there is no job, for those who come later.
    obstacle: Option<String>,
    /// Nobody is expected to come any more.
    closed: bool,
}

/// One authenticated connection.
#[derive(Debug)]
struct Guest {
    framed: Framed,
    /// The rank of its handshake.
    rank: Rank,
    seat: Option<Seat>,
    /// When it gives up.
    deadline: Instant,
    /// It got its last word: closed as soon as that is sent.
    leaving: bool,
}

impl Root {
    /// `doorway`: where ranks connect, if they do not come through [`admit`](Self::admit) alone. `nranks`: if it is known
    /// here; otherwise the first rank says it.
    pub(crate) fn new(doorway: Option<Doorway>, nranks: Option<u32>) -> io::Result<Self> {
        let poller = Poller::new()?;
        if let Some(doorway) = &doorway {
            poller.add(doorway.as_fd(), DOORWAY, Interest::Read)?;
        }
        let mut job = [0; 8];
        getrandom::fill(&mut job).map_err(io::Error::other)?;
        Ok(Self {
            poller,
            doorway,
            guests: BTreeMap::new(),
            next: DOORWAY + 1,
            seats: BTreeMap::new(),
            nranks: nranks.map(|n| (n, "the root".to_owned())),
            job: u64::from_le_bytes(job),
            since: None,
            over: None,
            obstacle: None,
            closed: false,
        })
    }
    /// Everything is said: it can be dropped.
    pub(crate) fn is_done(&self) -> bool {
        let latecomers = self.obstacle.is_some() && !self.closed;
        self.over.is_some() && self.guests.is_empty() && !latecomers
    }
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let door = self.doorway.as_ref().and_then(Doorway::next_timeout);
        let guests = self.guests.values().map(|guest| guest.deadline).min();
        door.into_iter().chain(guests).chain(self.over.map(|over| over + FAREWELL)).min()
    }
    /// Sleeps until [`turn`](Self::turn) has something to do.
    pub(crate) fn wait(&self) -> io::Result<()> {
        self.poller.wait(self.next_timeout()).map(drop)
    }
    /// Takes a connection that has proved that it has the key.
    pub(crate) fn admit(&mut self, stream: TcpStream, hello: Hello, now: Instant) {
        let token = self.next;
        self.next += 1;
        if let Err(e) = self.poller.add(stream.as_fd(), token, Interest::Read) {
            tracing::warn!("cannot serve rank {}: {e}", hello.rank);
            return;
        }
        let mut guest = Guest {
            framed: Framed::new(stream),
            rank: hello.rank,
            seat: None,
            deadline: now + FAREWELL,
            leaving: false,
        };
        if hello.purpose != Purpose::Join {
            guest.dismiss(&Message::Rejected("this address is the root's: it serves joining alone".into()));
        }
        self.guests.insert(token, guest);
        self.serve(token, now);
    }
    /// Moves everything on without blocking.
    pub(crate) fn turn(&mut self, now: Instant) {
        let admitted = self.doorway.as_mut().map(|doorway| doorway.turn(now)).unwrap_or_default();
        for (stream, hello) in admitted {
            self.admit(stream, hello, now);
        }
        for token in self.poller.wait(Some(now)).unwrap_or_default() {
            self.serve(token, now);
        }
        self.handle_timeouts(now);
    }

    fn serve(&mut self, token: u64, now: Instant) {
        let Some(guest) = self.guests.get_mut(&token) else { return };
        let heard = guest.hear();
        let broken = match heard {
            Ok(Some(join)) => {
                self.seat(token, join, now);
                false
            }
            Ok(None) => guest.framed.has_ended(),
            Err(e) => {
                tracing::debug!("the connection of rank {} to the root broke: {e}", guest.rank);
                true
            }
        };
        if broken || !self.flush(token) {
            self.forget(token);
        }
        if self.over.is_none() && self.nranks.as_ref().is_some_and(|(n, _)| self.seats.len() == *n as usize) {
            self.distribute(now);
        }
    }

    /// Whether the guest stays.
    fn flush(&mut self, token: u64) -> bool {
        let Some(guest) = self.guests.get_mut(&token) else { return true };
        if guest.framed.flush().is_err() {
            return false;
        }
        let interest = if guest.framed.is_clogged() { Interest::ReadWrite } else { Interest::Read };
        self.poller.modify(guest.framed.as_fd(), token, interest).is_ok()
    }

    fn seat(&mut self, token: u64, join: Join, now: Instant) {
        let verdict = self.judge(token, &join);
        let Some(guest) = self.guests.get_mut(&token) else { return };
        match verdict {
            Err(why) => {
                tracing::warn!("turned rank {} away: {why}", guest.rank);
                guest.dismiss(&Message::Rejected(why));
            }
            Ok(()) => {
                let since = *self.since.get_or_insert(now);
                tracing::debug!("{} joined after {:?}", describe(&join.seat), now.duration_since(since));
                self.nranks.get_or_insert_with(|| (join.nranks, describe(&join.seat)));
                let obstacle =
                    join.obstacle.map(|why| format!("{} cannot take part: {why}", describe(&join.seat)));
                self.seats.insert(join.seat.member.rank, token);
                guest.deadline = now + join.patience;
                guest.seat = Some(join.seat);
                if let Some(why) = obstacle {
                    self.give_up_for(why, now);
                }
            }
        }
    }

    fn judge(&self, token: u64, join: &Join) -> Result<(), String> {
        let member = &join.seat.member;
        let who = describe(&join.seat);
        let guest = &self.guests[&token];
        if guest.seat.is_some() || member.rank != guest.rank {
            return Err(format!("{who} contradicts what its connection said before (rank {})", guest.rank));
        }
        if let Some(why) = &self.obstacle {
            return Err(why.clone());
        }
        if self.over.is_some() {
            return Err(format!(
                "{who} came too late: the job at this address is complete or was given up. Start all ranks anew, \
                 another job at another address"
            ));
        }
        if join.nranks == 0 || join.nranks > MAX_RANKS {
            return Err(format!("{who} was told {} ranks, expected 1 to {MAX_RANKS}", join.nranks));
        }
        if let Some((nranks, by)) = &self.nranks
            && *nranks != join.nranks
        {
            return Err(format!(
                "{who} was told that there are {} ranks, {by} was told {nranks}: give every rank the same number",
                join.nranks
            ));
        }
        if member.rank >= join.nranks {
            return Err(format!(
                "{who} is out of range: {} ranks are numbered from 0 to {}",
                join.nranks,
                join.nranks - 1
            ));
        }
        if let Some(other) = self.seats.get(&member.rank).and_then(|token| self.guests[token].seat.as_ref()) {
            return Err(format!(
                "rank {} is taken twice: by {} and by {}. Give every process a rank of its own, and two jobs two \
                 addresses or two keys",
                member.rank,
                process(other),
                process(&join.seat)
            ));
        }
        Ok(())
    }

    /// The one place where everybody gets the table.
    fn distribute(&mut self, now: Instant) {
        let seats = self.seats.values().filter_map(|token| self.guests[token].seat.clone()).collect();
        let frame = Message::Table { job: self.job, seats }.encode();
        for guest in self.guests.values_mut().filter(|guest| guest.seat.is_some()) {
            guest.framed.push_encoded(&frame);
            guest.deadline = now + FAREWELL;
            guest.leaving = true;
        }
        self.conclude(now);
    }

    /// When the first rank gives up, the job cannot start any more: all learn who was missing until then.
    fn give_up(&mut self, now: Instant) {
        let nranks = self.nranks.as_ref().map_or(0, |(n, _)| *n);
        let here: BTreeSet<Rank> = self.seats.keys().copied().collect();
        let ranks: Vec<Rank> = (0..nranks).filter(|rank| !here.contains(rank)).collect();
        let waited = self.since.map_or(Duration::ZERO, |since| now.duration_since(since));
        let message = Message::Missing { ranks, waited };
        for guest in self.guests.values_mut().filter(|guest| guest.seat.is_some()) {
            guest.dismiss(&message);
            guest.deadline = now + FAREWELL;
        }
        self.conclude(now);
    }

    /// One rank cannot take part: nobody waits for it any longer.
    fn give_up_for(&mut self, why: String, now: Instant) {
        tracing::debug!("the job is given up: {why}");
        let message = Message::Rejected(why.clone());
        for guest in self.guests.values_mut().filter(|guest| guest.seat.is_some()) {
            guest.dismiss(&message);
            guest.deadline = now + FAREWELL;
        }
        self.obstacle = Some(why);
        self.conclude(now);
    }

    fn conclude(&mut self, now: Instant) {
        self.over = Some(now);
        let tokens: Vec<u64> = self.guests.keys().copied().collect();
        for token in tokens {
            if !self.flush(token) {
                self.forget(token);
            }
        }
    }

    fn handle_timeouts(&mut self, now: Instant) {
        self.closed |= self.over.is_some_and(|over| over + FAREWELL <= now);
        let late = |guest: &&Guest| guest.deadline <= now;
        if self.over.is_none() && self.guests.values().filter(late).any(|guest| guest.seat.is_some()) {
            self.give_up(now);
        }
        let gone: Vec<u64> =
            self.guests.iter().filter(|(_, guest)| guest.deadline <= now).map(|(token, _)| *token).collect();
        for token in gone {
            self.forget(token);
        }
    }

    fn forget(&mut self, token: u64) {
        let Some(guest) = self.guests.remove(&token) else { return };
        if let Some(seat) = guest.seat
            && !guest.leaving
        {
            tracing::debug!("{} went away before the job was complete", describe(&seat));
            self.seats.remove(&seat.member.rank);
        }
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl Guest {
    fn hear(&mut self) -> Result<Option<Join>, Broken> {
        self.framed.fill()?;
        match self.framed.next()? {
            Some(Message::Join(join)) => Ok(Some(join)),
            Some(_) => Err(Broken::Io(io::Error::other("a message that has no place in joining"))),
            None => Ok(None),
        }
    }
    fn dismiss(&mut self, message: &Message) {
        self.framed.push(message);
        self.leaving = true;
    }
}

fn describe(seat: &Seat) -> String {
    format!("rank {} ({})", seat.member.rank, process(seat))
}

fn process(seat: &Seat) -> String {
    format!("process {} on {}", seat.member.pid, seat.member.hostname)
}
