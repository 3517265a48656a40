//! What only processes can do: run into limits, and die.

mod rig;

use rig::{cause_of, is_closed, poll_until, recv};
use rondel_shm::ShmTransport;
use rondel_transport_api::{
    Advert, Endpoint, Event, LaneId, Offer, Post, Slice, Token, Transport, TransportError,
    conformance::{open_all, test_config},
};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Names the role of this program as the child of a test.
const ROLE: &str = "SHM_TEST_ROLE";

fn child(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this test"));
    command.args(["child_with_a_role", "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// The part of a child, and nothing in any other process.
#[test]
fn child_with_a_role() {
    match std::env::var(ROLE).as_deref() {
        Ok("peer") => peer(|_, _| {}),
        Ok("lender") => peer(lend),
        Ok(limit) => under_a_limit(limit),
        Err(_) => {}
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout();
    out.write_all(format!("\n@ {text}\n").as_bytes()).expect("a pipe");
    out.flush().expect("a pipe");
}

/// What a child says, marked lines only.
fn said(out: impl Read) -> impl Iterator<Item = String> {
    BufReader::new(out)
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("@ ").map(str::to_owned))
}

fn limit_to(resource: libc::__rlimit_resource_t, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: `limit` is readable.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// Says why there is no port, and why there is no lane for an endpoint that was opened before.
fn under_a_limit(limit: &str) {
    let mut end = open_all(&ShmTransport, 1).pop().expect("one");
    let own = end.advert();
    match limit {
        "files" => limit_to(libc::RLIMIT_FSIZE, 100 << 10),
        "address space" => {
            let statm = fs::read_to_string("/proc/self/statm").expect("proc is mounted");
            let pages: u64 = statm.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number");
            limit_to(libc::RLIMIT_AS, pages * 4096 + (300 << 10));
        }
        other => panic!("no child knows the limit {other:?}"),
    }
    say(&ShmTransport.discover(&test_config(0)).expect_err("there is no room").to_string());
    say(&end.prepare(&own).expect_err("there is no room").to_string());
    say(&end.allocate(1 << 20).expect_err("there is no room").to_string());
}

#[test]
fn limits_are_named_before_they_are_met() {
    for (limit, words) in [
        ("files", ["may make files of 100 KiB", "RLIMIT_FSIZE", "ulimit -f"]),
        ("address space", ["of address space left", "RLIMIT_AS", "ulimit -v"]),
    ] {
        let output = child(limit).output().expect("a child");
        let all: Vec<_> = said(&output.stdout[..]).collect();
        assert_eq!(
            (output.status.code(), output.status.signal()),
            (Some(0), None),
            "{all:?} {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(all.len(), 3, "{all:?}");
        for text in all {
            assert!(words.iter().all(|word| text.contains(word)), "expected {words:?}: {text}");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let pair = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len() / 2).map(|index| pair(index * 2)).collect()
}

fn advert_of(words: &[&str], ours: &Advert) -> Advert {
    Advert { domain: bytes(words[0]), address: bytes(words[1]), ..ours.clone() }
}

/// A peer that talks over its pipes: its advert, then its offer for ours, then whatever the lane says.
fn peer(once_established: impl FnOnce(&mut Box<dyn Endpoint>, LaneId)) {
    let mut once_established = Some(once_established);
    let mut end = ShmTransport
        .discover(&test_config(1))
        .and_then(|ports| ShmTransport.open(&ports[0], &test_config(1)).map_err(|error| panic!("{error}")));
    let end = end.as_mut().expect("an endpoint");
    let own = end.advert();
    let mut lines = std::io::stdin().lines().map(|line| line.expect("the parent's words"));
    let mut words = || lines.next().expect("the parent's words");
    let theirs = words();
    let advert = advert_of(&theirs.split(' ').collect::<Vec<_>>(), &own);
    let (lane, offer) = end.prepare(&advert).expect("reached");
    say(&format!("{} {} {}", hex(&own.domain), hex(&own.address), hex(&offer.0)));
    end.establish(lane, &Offer(bytes(&words()))).expect("an offer");
    let mut events = Vec::new();
    loop {
        end.poll(&mut events, 1 << 20);
        for event in events.drain(..) {
            if matches!(event, Event::Established { .. })
                && let Some(act) = once_established.take()
            {
                act(end, lane);
            }
            say(&format!("{event:?}"));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Bytes of the messages below.
const LENT: usize = 1 << 20;

/// Sends one message from memory that its peer maps.
fn lend(end: &mut Box<dyn Endpoint>, lane: LaneId) {
    let made = end.allocate(LENT).expect("memory");
    // SAFETY: the memory is that long, and ours; nobody writes to it afterwards.
    let post = unsafe {
        made.region.addr.write_bytes(5, LENT);
        end.post_send(
            lane,
            Slice { addr: made.region.addr, len: LENT as u32, region: Some(made.id) },
            7,
            Token(1),
        )
    };
    assert_eq!(post, Post::Accepted);
    end.flush();
    std::mem::forget(made);
}

struct Peer {
    process: Child,
    _pipe: ChildStdin,
    /// Its listener, as the kernel lists it.
    listener: String,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // One that has ended needs no end.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A lane to a process of its own.
fn lane_to_a_process(end: &mut Box<dyn Endpoint>, role: &str) -> (LaneId, Peer) {
    let mut process = child(role).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
    let mut pipe = process.stdin.take().expect("a pipe");
    let mut lines = said(process.stdout.take().expect("a pipe"));
    let own = end.advert();
    writeln!(pipe, "{} {}", hex(&own.domain), hex(&own.address)).expect("it listens");
    let theirs = lines.next().expect("its advert and offer");
    let words: Vec<&str> = theirs.split(' ').collect();
    let advert = advert_of(&words, &own);
    assert!(end.reaches(&advert).is_some(), "processes of one host reach each other");
    let (lane, offer) = end.prepare(&advert).expect("reached");
    writeln!(pipe, "{}", hex(&offer.0)).expect("it listens");
    end.establish(lane, &Offer(bytes(words[2]))).expect("an offer");
    poll_until(&mut [end], "established", |seen| !seen.is_empty());
    assert!(lines.next().expect("an event").contains("Established"));
    let listener = format!("@rondel-{}", words[1]);
    (lane, Peer { process, _pipe: pipe, listener })
}

/// Held by tests that have lanes in this process, since one of them looks at all that it maps.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listens(name: &str) -> bool {
    fs::read_to_string("/proc/net/unix").expect("proc is mounted").contains(name)
}

fn files_of_shared_memory() -> Vec<String> {
    let Ok(list) = fs::read_dir("/dev/shm") else { return Vec::new() };
    list.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_killed_process_is_noticed_and_leaves_nothing() {
    let _alone = alone();
    let mut end = open_all(&ShmTransport, 1).pop().expect("one");
    let (lane, mut peer) = lane_to_a_process(&mut end, "peer");
    assert!(listens(&peer.listener), "{}", peer.listener);
    let named = |name: &String| name.contains("rondel-lane") || name.contains(&peer.listener[1..]);
    assert!(!files_of_shared_memory().iter().any(named), "a lane's memory has no name");
    let maps = || fs::read_to_string("/proc/self/maps").expect("proc is mounted");
    assert!(maps().contains("rondel-lane"), "its memory and ours are mapped");
    let mut dst = vec![0u8; 100];
    recv(&mut end, lane, &mut dst, 1);
    peer.process.kill().expect("it runs");
    let killed = Instant::now();
    let seen = poll_until(&mut [&mut end], "the lane ends", is_closed);
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    let error = cause_of(&seen);
    assert!(matches!(error, TransportError::Lost { .. }), "{error}");
    assert!(error.to_string().contains(&format!("rank 1 (process {})", peer.process.id())), "{error}");
    peer.process.wait().expect("it is our child");
    assert!(!listens(&peer.listener), "its listener is gone");
    assert!(!maps().contains("rondel-lane"), "neither its memory nor ours for it stays mapped");
}

#[test]
fn memory_of_a_killed_process_is_read_to_the_end() {
    let _alone = alone();
    for budget in [1, 1 << 20] {
        let mut end = open_all(&ShmTransport, 1).pop().expect("one");
        let (lane, mut peer) = lane_to_a_process(&mut end, "lender");
        let (mut dst, mut events) = (vec![0u8; LENT], Vec::new());
        recv(&mut end, lane, &mut dst, 1);
        end.poll(&mut events, budget);
        peer.process.kill().expect("it runs");
        peer.process.wait().expect("it is our child");
        if events.is_empty() {
            events.push(poll_until(&mut [&mut end], "an event", |seen| !seen.is_empty()).remove(0).1);
        }
        assert!(matches!(events[..], [Event::Done { token: Token(1) }]), "{events:?}");
        assert!(dst.iter().all(|&byte| byte == 5), "all of it");
        let error = cause_of(&poll_until(&mut [&mut end], "the lane ends", is_closed));
        assert!(matches!(error, TransportError::Lost { .. }), "{error}");
    }
}

#[test]
fn a_stopped_process_is_no_dead_one() {
    let _alone = alone();
    let mut end = open_all(&ShmTransport, 1).pop().expect("one");
    let (lane, peer) = lane_to_a_process(&mut end, "peer");
    // SAFETY: takes no pointers; the process is our child.
    assert_eq!(unsafe { libc::kill(peer.process.id() as libc::pid_t, libc::SIGSTOP) }, 0);
    let (src, mut events) = (vec![1u8; 1 << 20], Vec::new());
    rig::send(&mut end, lane, &src, 1);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(700) {
        end.poll(&mut events, 1 << 20);
        std::thread::sleep(Duration::from_micros(100));
    }
    assert!(events.is_empty(), "it is waited for: {events:?}");
    end.close(lane);
    let began = Instant::now();
    let seen = poll_until(&mut [&mut end], "the linger is over", is_closed);
    assert!(began.elapsed() < Duration::from_secs(5) && seen.len() == 2, "{seen:?}");
}
