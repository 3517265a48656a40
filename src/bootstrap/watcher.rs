//! The thread: one loop that sleeps until something happens, and hands it to whose concern it is.

use super::{
    Answer, LaneOffer, Liveness, Notice,
    doorway::Doorway,
    exhibit::Exhibit,
    inquiry::{Inquiries, Step},
    links::{LinkEvent, Links},
    poller::{Bell, Interest, Poller},
    process::{Pidfd, Watch, look},
    root::Root,
    wire::{Asked, Message, Reading, Seat, Sight},
};
use crate::{
    engine::status::{Status, StatusPage, StatusSocket, find_page},
    error::{Cause, Failure},
    membership::{Action, Membership, Pace},
    plan::Rank,
};
use crossbeam::queue::SegQueue;
use rondel_transport_api::{Acceptor, Incoming, handshake::Key, handshake::Purpose};
use std::{
    collections::BTreeMap,
    io,
    net::TcpStream,
    os::fd::AsFd,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a goodbye may take.
pub(super) const FAREWELL: Duration = Duration::from_millis(200);

const BELL: u64 = 0;
const DOORWAY: u64 = 1;
const ROOT: u64 = 2;
const EXHIBIT: u64 = 3;
/// Process descriptors: this plus the rank.
const PROCESS: u64 = 1 << 32;
/// Control connections: this plus their number.
const LINK: u64 = 1 << 33;

/// What the handle and the thread share.
#[derive(Debug)]
pub(super) struct Shared {
    commands: SegQueue<Command>,
    bell: Bell,
    notices: SegQueue<Notice>,
    waiting: AtomicBool,
    pub(super) notice_bell: Bell,
}

/// What the handle wants.
#[derive(Debug)]
pub(super) enum Command {
    Host(Box<Root>),
    Joined(Box<Joined>),
    Offer { to: Rank, offer: LaneOffer },
    Inquire { about: Rank, asked: Asked },
    Declare(Box<Failure>),
    Leave,
}

/// A job that was joined, as the thread needs it.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) job: u64,
    pub(super) me: Rank,
    pub(super) seats: Vec<Seat>,
    pub(super) page: Arc<StatusPage>,
    /// Through which others see the page, if they can.
    pub(super) socket: Option<StatusSocket>,
}

impl Shared {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            commands: SegQueue::new(),
            bell: Bell::new()?,
            notices: SegQueue::new(),
            waiting: AtomicBool::new(false),
            notice_bell: Bell::new()?,
        })
    }
    pub(super) fn command(&self, command: Command) {
        self.commands.push(command);
        self.bell.ring();
    }
    pub(super) fn notify(&self, notice: Notice) {
        self.notices.push(notice);
        self.waiting.store(true, Ordering::Release);
        self.notice_bell.ring();
    }
    pub(super) fn notice(&self) -> Option<Notice> {
        if !self.waiting.load(Ordering::Relaxed) {
            return None;
        }
        let next = self.notices.pop();
        if next.is_some() {
            return next;
        }
        // Clear first, look again after: a notice that comes in between sets the flag anew.
        self.waiting.store(false, Ordering::SeqCst);
        self.notice_bell.silence();
        let late = self.notices.pop();
        if late.is_some() {
            self.waiting.store(true, Ordering::SeqCst);
            self.notice_bell.ring();
        }
        late
    }
}

/// The thread's own state.
pub(super) struct Thread {
    poller: Rc<Poller>,
    shared: Arc<Shared>,
    acceptor: Arc<Acceptor>,
    doorway: Doorway,
    key: Key,
    pace: Pace,
    root: Option<Root>,
    /// Control links from ranks that had the table earlier than this one.
    early: Vec<(TcpStream, Rank)>,
    seated: Option<Seated>,
    /// When this rank leaves at the latest; whether its half of the links is closed.
    leaving: Option<(Instant, bool)>,
}

/// Everything that begins with the table.
struct Seated {
    job: u64,
    me: Rank,
    seats: Rc<[Seat]>,
    page: Arc<StatusPage>,
    exhibit: Option<Exhibit>,
    links: Links,
    membership: Membership,
    inquiries: Inquiries,
    processes: BTreeMap<Rank, Pidfd>,
}

impl Thread {
    pub(super) fn new(
        shared: Arc<Shared>,
        acceptor: Arc<Acceptor>,
        doorway: Doorway,
        key: Key,
        pace: Pace,
    ) -> io::Result<Self> {
        let poller = Rc::new(Poller::new()?);
        poller.add(shared.bell.as_fd(), BELL, Interest::Read)?;
        poller.add(doorway.as_fd(), DOORWAY, Interest::Read)?;
        Ok(Self {
            poller,
            shared,
            acceptor,
            doorway,
            key,
            pace,
            root: None,
            early: Vec::new(),
            seated: None,
            leaving: None,
        })
    }

    /// Until this rank has left.
    pub(super) fn run(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.poller.wait(self.next_timeout())?;
            let now = Instant::now();
            // The end of a process comes last: its goodbye may wait in the same batch.
            ready.sort_by_key(|token| (PROCESS..LINK).contains(token));
            for &token in &ready {
                self.handle_ready(token, now);
            }
            self.handle_commands(now);
            self.settle(now);
            self.handle_timeouts(now);
            self.settle(now);
            if self.has_left(now) {
                return Ok(());
            }
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let leaving = self.leaving.map(|(until, _)| until);
        let root = self.root.as_ref().and_then(Root::next_timeout);
        let seated = self.seated.iter().flat_map(|seated| {
            let links = seated.links.next_timeout();
            let exhibit = seated.exhibit.as_ref().and_then(Exhibit::next_timeout);
            let machines =
                seated.membership.next_timeout().into_iter().chain(seated.inquiries.next_timeout());
            machines.chain(links).chain(exhibit)
        });
        self.doorway.next_timeout().into_iter().chain(leaving).chain(root).chain(seated).min()
    }

    fn handle_ready(&mut self, token: u64, now: Instant) {
        match token {
            BELL => self.shared.bell.silence(),
            DOORWAY => self.open_doorway(now),
            ROOT => {
                if let Some(root) = &mut self.root {
                    root.turn(now);
                }
            }
            _ => {
                let Some(seated) = &mut self.seated else { return };
                if token == EXHIBIT {
                    seated.exhibit.iter_mut().for_each(|exhibit| exhibit.answer(now));
                } else if token >= LINK {
                    seated.links.handle_ready(token, now);
                } else {
                    seated.handle_process_end((token - PROCESS) as Rank, &self.poller, now);
                }
            }
        }
    }

    fn open_doorway(&mut self, now: Instant) {
        for (stream, hello) in self.doorway.turn(now) {
            match (hello.purpose, &mut self.seated, &mut self.root) {
                (Purpose::Lane { cookie, stripe }, ..) => {
                    self.acceptor.deliver(Incoming { from: hello.rank, cookie, stripe, stream });
                }
                (Purpose::Control, Some(seated), _) => seated.links.accept(stream, hello.rank, now),
                (Purpose::Control, None, _) => self.early.push((stream, hello.rank)),
                (Purpose::Join, _, Some(root)) => root.admit(stream, hello, now),
                (Purpose::Join, _, None) => {
                    tracing::debug!("rank {} wants to join here, but this is not the root", hello.rank);
                }
            }
        }
    }

    fn handle_commands(&mut self, now: Instant) {
        while let Some(command) = self.shared.commands.pop() {
            match (command, &mut self.seated) {
                (Command::Host(root), _) => match self.poller.add(root.as_fd(), ROOT, Interest::Read) {
                    Ok(()) => self.root = Some(*root),
                    Err(e) => tracing::warn!("cannot serve as the root: {e}"),
                },
                (Command::Joined(joined), _) => self.sit_down(*joined, now),
                (Command::Leave, seated) => {
                    self.leaving = Some((now + FAREWELL, false));
                    if let Some(seated) = seated {
                        seated.membership.leave();
                    }
                }
                (Command::Offer { to, offer }, Some(seated)) if seated.is_peer(to) => {
                    seated.links.send_offer(to, offer, now);
                }
                (Command::Inquire { about, asked }, Some(seated)) => {
                    seated.inquire(about, asked, &self.shared, now);
                }
                (Command::Declare(failure), Some(seated)) => seated.membership.declare(*failure, now),
                (command, _) => {
                    tracing::warn!("{command:?} concerns no rank of a job that this process joined")
                }
            }
        }
    }

    fn sit_down(&mut self, joined: Joined, now: Instant) {
        let seats: Rc<[Seat]> = joined.seats.into();
        let nranks = seats.len() as u32;
        let mut links =
            Links::new(self.poller.clone(), LINK, self.key.clone(), joined.job, joined.me, seats.clone());
        for (stream, rank) in self.early.drain(..) {
            links.accept(stream, rank, now);
        }
        let exhibit = joined.socket.and_then(|socket| {
            Exhibit::open(socket, self.poller.clone(), EXHIBIT)
                .inspect_err(|e| tracing::warn!("`rondel status` will not show this process: {e}"))
                .ok()
        });
        let mut seated = Seated {
            job: joined.job,
            me: joined.me,
            seats,
            page: joined.page,
            exhibit,
            links,
            membership: Membership::new(joined.me, nranks, self.pace, now),
            inquiries: Inquiries::default(),
            processes: BTreeMap::new(),
        };
        seated.watch_processes(&self.poller, now);
        self.seated = Some(seated);
    }

    /// Carries out what the machines ask for, until none asks for more.
    fn settle(&mut self, now: Instant) {
        let Some(seated) = &mut self.seated else { return };
        loop {
            if let Some(event) = seated.links.poll_event() {
                seated.handle_link(event, &self.shared, now);
            } else if let Some(action) = seated.membership.poll_action() {
                seated.carry_out(action, &self.shared, now);
            } else {
                return;
            }
        }
    }

    fn handle_timeouts(&mut self, now: Instant) {
        if self.doorway.next_timeout().is_some_and(|due| due <= now) {
            self.open_doorway(now);
        }
        if let Some(root) = &mut self.root
            && root.next_timeout().is_some_and(|due| due <= now)
        {
            root.turn(now);
        }
        if let Some(seated) = &mut self.seated {
            seated.exhibit.iter_mut().for_each(|exhibit| exhibit.resume(now));
            seated.links.handle_timeout(now);
            seated.membership.handle_timeout(now);
            for step in seated.inquiries.handle_timeout(now) {
                seated.take_step(step, &self.shared, now);
            }
        }
    }

    fn has_left(&mut self, now: Instant) -> bool {
        let Some((until, hung_up)) = &mut self.leaving else { return false };
        let Some(seated) = &mut self.seated else { return true };
        if *until <= now {
            return true;
        }
        if !*hung_up && seated.membership.is_linked() && seated.links.is_flushed() {
            *hung_up = true;
            seated.links.hang_up();
        }
        *hung_up && !seated.links.has_connections()
    }
}

impl Seated {
    fn is_peer(&self, rank: Rank) -> bool {
        rank != self.me && (rank as usize) < self.seats.len()
    }
    fn is_local(&self, rank: Rank) -> bool {
        self.host_of(rank) == self.host_of(self.me)
    }
    fn host_of(&self, rank: Rank) -> &[u8; 16] {
        &self.seats[rank as usize].member.host
    }
    /// Looks at a rank's process and, if it is stopped and something was asked, at its page.
    fn look(&self, rank: Rank, asked: Option<Asked>) -> (Sight, Option<Reading>) {
        if !self.is_local(rank) {
            return (Sight::Hidden, None);
        }
        let seat = &self.seats[rank as usize];
        let sight = look(seat.member.pid, seat.process);
        let asked = asked.filter(|_| sight == Sight::Stopped);
        let reading = asked.and_then(|asked| {
            let page = find_page(seat.member.pid, (self.job, rank));
            let page = page.inspect_err(|e| tracing::debug!("rank {rank} is stopped: {e}")).ok()?;
            Some(reading(page.read(asked.comm), &asked))
        });
        (sight, reading)
    }

    fn watch_processes(&mut self, poller: &Poller, now: Instant) {
        let seats = self.seats.clone();
        let own = std::process::id();
        let here = seats[self.me as usize].member.host;
        for seat in seats.iter().filter(|seat| seat.member.host == here && seat.member.pid != own) {
            let rank = seat.member.rank;
            match Pidfd::open(seat.member.pid, seat.process) {
                Watch::On(process) => {
                    match poller.add(process.as_fd(), PROCESS + u64::from(rank), Interest::Read) {
                        Ok(()) => drop(self.processes.insert(rank, process)),
                        Err(e) => tracing::warn!("cannot watch the process of rank {rank}: {e}"),
                    }
                }
                Watch::Gone => {
                    let how = "its process ended while the job was being joined".to_owned();
                    self.membership.handle_process_end(rank, how, true, now);
                }
                Watch::Impossible => {
                    tracing::debug!("the process of rank {rank} cannot be watched from here")
                }
            }
        }
    }

    fn handle_process_end(&mut self, rank: Rank, poller: &Poller, now: Instant) {
        let Some(process) = self.processes.remove(&rank) else { return };
        // Closing the descriptor takes it out of the set in any case.
        let _ = poller.remove(process.as_fd());
        let (how, doubtful) = process.ending();
        tracing::debug!("the process of rank {rank} has ended: {how}");
        self.membership.handle_process_end(rank, how, doubtful, now);
    }

    fn handle_link(&mut self, event: LinkEvent, shared: &Shared, now: Instant) {
        match event {
            LinkEvent::Up(rank) => self.membership.handle_link_up(rank, now),
            LinkEvent::Down(rank) => self.membership.handle_link_down(rank, now),
            LinkEvent::DialFailed { rank, refused } => {
                self.membership.handle_dial_failed(rank, refused, now);
            }
            LinkEvent::Heard { from, message } => {
                self.membership.handle_heard(from, now);
                self.handle_message(from, *message, shared, now);
            }
        }
    }

    fn handle_message(&mut self, from: Rank, message: Message, shared: &Shared, now: Instant) {
        match message {
            Message::Heartbeat { .. } => {}
            Message::Offer { offer, .. } => shared.notify(Notice::Offer { from, offer }),
            Message::Inquiry { id, asked } => {
                let answer = self.answer(&asked);
                self.links.send(from, &Message::Answer { id, answer }, now);
            }
            Message::Answer { id, answer } => {
                if let Some(step) = self.inquiries.handle_answer(id, from, answer) {
                    self.take_step(step, shared, now);
                }
            }
            Message::Look { id, about, asked } if (about as usize) < self.seats.len() => {
                let (sight, reading) = self.look(about, asked);
                self.links.send(from, &Message::Seen { id, about, sight, reading }, now);
            }
            Message::Seen { id, about, sight, reading } => {
                if let Some(step) = self.inquiries.handle_sight(id, about, sight, reading) {
                    self.take_step(step, shared, now);
                }
            }
            Message::News(news) => self.membership.handle_news(from, news, now),
            other => {
                tracing::debug!("rank {from} said something that has no place on a control link: {other:?}")
            }
        }
    }

    fn carry_out(&mut self, action: Action, shared: &Shared, now: Instant) {
        match action {
            Action::Dial(rank) => self.links.dial(rank, now),
            Action::Send { to, news } => self.links.send(to, &Message::News(news), now),
            Action::Heartbeat(rank) => self.links.send_heartbeat(rank, now),
            Action::Examine(rank) => {
                let id = self.inquiries.examine(rank, now);
                self.take_step(Step::Look { id, about: rank, asked: None }, shared, now);
            }
            Action::Failed(failure) => {
                tracing::debug!("the job has failed: {failure}");
                shared.notify(Notice::Failed(failure));
            }
            Action::Left(rank) => {
                self.links.forget(rank);
                shared.notify(Notice::Left(rank));
            }
        }
    }

    fn inquire(&mut self, about: Rank, asked: Asked, shared: &Shared, now: Instant) {
        if about == self.me {
            shared.notify(Notice::Answer(self.answer(&asked)));
            return;
        }
        let id = self.inquiries.ask(about, asked, now);
        if self.is_peer(about) {
            // A process of this host that is stopped is seen to be; nobody need wait for an answer that does not come.
            let (sight, reading) = self.look(about, Some(asked));
            if sight == Sight::Stopped
                && let Some(step) = self.inquiries.handle_sight(id, about, sight, reading)
            {
                return self.take_step(step, shared, now);
            }
            self.links.send(about, &Message::Inquiry { id, asked }, now);
        }
    }

    /// From the status page, without the help of the thread that writes it.
    fn answer(&self, asked: &Asked) -> Answer {
        let Asked { comm, seq, .. } = *asked;
        let Reading { entered, completed, call } = reading(self.page.read(comm), asked);
        Answer { about: self.me, comm, seq, entered, completed, call, liveness: Liveness::Alive }
    }

    fn take_step(&mut self, step: Step, shared: &Shared, now: Instant) {
        match step {
            Step::Answer(answer) => shared.notify(Notice::Answer(answer)),
            Step::Sight(rank, sight) => {
                if sight == Sight::Stopped {
                    tracing::warn!(
                        "rank {rank} is stopped by a signal or a debugger; waiting for it to go on"
                    );
                }
                self.membership.handle_sight(rank, sight, now);
            }
            Step::Look { id, about, asked } if self.is_peer(about) => {
                self.send_look(id, about, asked, shared, now);
            }
            Step::Look { .. } => {}
        }
    }

    fn send_look(&mut self, id: u64, about: Rank, asked: Option<Asked>, shared: &Shared, now: Instant) {
        if !self.is_local(about) {
            let on_its_host = |&rank: &Rank| {
                rank != about && self.host_of(rank) == self.host_of(about) && !self.membership.is_gone(rank)
            };
            if let Some(observer) = (0..self.seats.len() as Rank).find(on_its_host) {
                self.links.send(observer, &Message::Look { id, about, asked }, now);
                return;
            }
        }
        let (sight, reading) = self.look(about, asked);
        if let Some(step) = self.inquiries.handle_sight(id, about, sight, reading) {
            self.take_step(step, shared, now);
        }
    }
}

/// What a page says about a call.
fn reading(status: Option<Status>, asked: &Asked) -> Reading {
    let Some(status) = status else { return Reading::default() };
    Reading {
        entered: status.entered.map_or(0, |call| call.seq),
        completed: status.completed,
        call: status.recent.into_iter().find(|call| asked.is(call)),
    }
}

/// The thread cannot go on: the engine must not wait for what it will not hear.
pub(super) fn report_end(shared: &Shared, me: Rank, what: String) {
    tracing::error!("the watcher has ended: {what}");
    let failure = Failure { origin: me, comm: None, cause: Cause::Bug(what), waiting: None, agreed: false };
    shared.notify(Notice::Failed(Arc::new(failure)));
}

impl Thread {
    /// This rank, as far as it is known.
    pub(super) fn rank(&self) -> Rank {
        self.seated.as_ref().map_or(0, |seated| seated.me)
    }
}
