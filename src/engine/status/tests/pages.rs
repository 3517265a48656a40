//! Pages and views, without sockets.

use super::super::*;
use crate::plan::Collective;
use proptest::prelude::*;
use rondel_transport_api::{DataType, ReduceOp, Scalar};
use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

const OWNER: Owner = Owner { job: 0xfeed_0000_0000_beef, rank: 2, nranks: 5, pid: 77 };

fn call(seq: u64, collective: Collective) -> Call {
    let op = collective.reduces().then_some(ReduceOp::Sum);
    Call { seq, collective, dtype: DataType::F32, op, count: 10 * seq, root: 1 }
}

fn page_and_view() -> (StatusPage, StatusView) {
    let page = StatusPage::create(&OWNER).unwrap();
    let view = StatusView::map(page.descriptor()).unwrap();
    (page, view)
}

/// A memfd with the given content and seals.
fn foreign(content: &[u8], seals: libc::c_int) -> OwnedFd {
    // SAFETY: the name is a C string.
    let raw =
        unsafe { libc::memfd_create(c"rondel-test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    assert!(raw >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the kernel just made this descriptor for us.
    let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
    File::from(descriptor.try_clone().unwrap()).write_all(content).unwrap();
    // SAFETY: a plain system call on our own descriptor.
    assert!(unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, seals) } == 0);
    descriptor
}

fn content_of(page: &StatusPage) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut content = vec![0; memory::BYTES];
    File::from(page.descriptor().try_clone_to_owned().unwrap()).read_exact_at(&mut content, 0).unwrap();
    content
}

#[test]
fn a_view_says_what_the_page_was_told() {
    let (page, view) = page_and_view();
    assert_eq!(view.owner(), OWNER);
    assert_eq!(page.owner(), OWNER);
    assert!(view.read_all().is_empty());
    let slot = page.open_slot(9, 1, 4).unwrap();
    let fresh =
        Status { comm: 9, rank: 1, nranks: 4, entered: None, completed: 0, waiting: None, recent: vec![] };
    assert_eq!(view.read(9), Some(fresh));
    assert_eq!(view.read(8), None);

    page.entered(slot, &call(1, Collective::AllReduce));
    page.completed(slot, 1);
    page.entered(slot, &call(1, Collective::Send));
    page.entered(slot, &call(2, Collective::Broadcast));
    page.entered(slot, &call(1, Collective::Recv));
    let waiting = WaitingFor {
        seq: 2,
        step: 7,
        peer: 3,
        receiving: true,
        since: Duration::from_nanos(123_456_789_012),
    };
    page.waiting(slot, Some(waiting));
    let status = view.read(9).unwrap();
    assert_eq!(status.entered, Some(call(2, Collective::Broadcast)), "sends and receives do not count");
    assert_eq!((status.completed, status.waiting), (1, Some(waiting)));
    assert_eq!(
        status.recent,
        [
            call(1, Collective::AllReduce),
            call(1, Collective::Send),
            call(2, Collective::Broadcast),
            call(1, Collective::Recv)
        ]
    );
    assert_eq!(page.read(9), Some(status.clone()));
    assert_eq!(view.read_all(), [status]);
    page.waiting(slot, None);
    assert_eq!(view.read(9).unwrap().waiting, None);
}

#[test]
fn the_last_calls_are_remembered_and_sends_do_not_push_out_the_collective() {
    let (page, view) = page_and_view();
    let slot = page.open_slot(1, 0, 2).unwrap();
    (1..=100).for_each(|seq| page.entered(slot, &call(seq, Collective::AllGather)));
    let recent = view.read(1).unwrap().recent;
    assert_eq!(recent, (37..=100).map(|seq| call(seq, Collective::AllGather)).collect::<Vec<_>>());
    (1..=1000).for_each(|seq| page.entered(slot, &call(seq, Collective::Send)));
    let status = view.read(1).unwrap();
    assert_eq!(status.entered, Some(call(100, Collective::AllGather)));
    assert_eq!(status.recent, (937..=1000).map(|seq| call(seq, Collective::Send)).collect::<Vec<_>>());
}

#[test]
fn every_kind_of_call_survives() {
    let (page, view) = page_and_view();
    let slot = page.open_slot(1, 0, u32::MAX).unwrap();
    let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg].map(Some);
    for collective in Collective::ALL {
        for dtype in DataType::ALL {
            for op in ops.into_iter().chain([None]) {
                let call = Call { seq: u64::MAX, collective, dtype, op, count: u64::MAX, root: u32::MAX };
                page.entered(slot, &call);
                assert_eq!(view.read(1).unwrap().recent.last(), Some(&call));
            }
        }
    }
    let scaled = Some(ReduceOp::PreMulSum(Scalar::Float(0.5)));
    page.entered(slot, &Call { op: scaled, ..call(1, Collective::AllReduce) });
    let read = view.read(1).unwrap().entered.unwrap();
    assert!(matches!(read.op, Some(ReduceOp::PreMulSum(Scalar::Float(scalar))) if scalar.is_nan()));
}

#[test]
fn slots_run_out_and_come_back_empty() {
    let (page, view) = page_and_view();
    let slots: Vec<_> = (0..SLOTS as u64).map(|comm| page.open_slot(comm, 0, 1).unwrap()).collect();
    assert_eq!(page.open_slot(99, 0, 1), None);
    assert_eq!(view.read_all().len(), SLOTS);
    page.entered(slots[3], &call(1, Collective::Barrier));
    page.waiting(
        slots[3],
        Some(WaitingFor { seq: 1, step: 0, peer: 0, receiving: false, since: Duration::ZERO }),
    );
    page.close_slot(slots[3]);
    page.close_slot(slots[3]);
    assert_eq!(view.read(3), None);
    assert_eq!(page.open_slot(99, 0, 1), Some(slots[3]));
    let fresh =
        Status { comm: 99, rank: 0, nranks: 1, entered: None, completed: 0, waiting: None, recent: vec![] };
    assert_eq!(view.read(99), Some(fresh));
}

#[test]
fn a_view_outlives_the_page() {
    let (page, view) = page_and_view();
    let slot = page.open_slot(1, 0, 1).unwrap();
    page.entered(slot, &call(5, Collective::AllReduce));
    drop(page);
    assert_eq!(view.read(1).unwrap().entered, Some(call(5, Collective::AllReduce)));
}

/// A writer at full speed, whose fields are related, and which passes its slot on now and then.
#[test]
fn readers_see_one_moment() {
    const COMMS: u64 = 3;
    let (page, view) = page_and_view();
    let over = AtomicBool::new(false);
    let until = Instant::now() + Duration::from_millis(1500);
    let related = |comm: u64, seq: u64| Call {
        seq,
        collective: if seq.is_multiple_of(3) { Collective::Send } else { Collective::AllReduce },
        dtype: DataType::ALL[seq as usize % 15],
        op: None,
        count: seq.wrapping_mul(0x9e37_79b9) ^ comm,
        root: (seq ^ comm) as u32,
    };
    let check = |status: &Status| {
        let comm = status.comm;
        assert_eq!((u64::from(status.rank), u64::from(status.nranks)), (comm, comm + 1));
        let entered = status.entered.map_or(0, |call| call.seq);
        assert!(status.completed <= entered, "completed {} of {entered}", status.completed);
        for call in status.recent.iter().chain(&status.entered) {
            assert_eq!(*call, related(comm, call.seq), "a torn call");
        }
        assert!(status.recent.is_sorted_by_key(|call| call.seq));
        if let Some(waiting) = status.waiting {
            assert_eq!(waiting.since, Duration::from_nanos(waiting.seq * 3));
            assert_eq!((waiting.step as u64, waiting.peer as u64), (waiting.seq % 1000, comm));
            let in_call = status.completed < waiting.seq && waiting.seq <= entered;
            assert!(in_call, "{waiting:?} of {entered}, completed {}", status.completed);
        }
    };
    let seen = thread::scope(|scope| {
        let readers = [&view, &view].map(|view| {
            scope.spawn(|| {
                let mut seen = 0u64;
                while !over.load(Ordering::Relaxed) {
                    for status in (0..COMMS).filter_map(|comm| view.read(comm)).chain(view.read_all()) {
                        check(&status);
                        seen += u64::from(status.entered.is_some());
                    }
                }
                seen
            })
        });
        // Short lives without waiting are what only the slot's generation tells apart.
        for (comm, calls) in (0..COMMS).cycle().zip([20_000, 3, 70, 3, 70].into_iter().cycle()) {
            if Instant::now() > until {
                break;
            }
            let slot = page.open_slot(comm, comm as u32, comm as u32 + 1).unwrap();
            for seq in 1..=calls {
                let call = related(comm, seq);
                page.entered(slot, &call);
                if call.collective != Collective::Send && seq.is_multiple_of(50) {
                    let (step, peer) = ((seq % 1000) as u32, comm as u32);
                    let since = Duration::from_nanos(seq * 3);
                    page.waiting(slot, Some(WaitingFor { seq, step, peer, receiving: true, since }));
                    (0..100).for_each(|_| std::hint::spin_loop());
                    page.waiting(slot, None);
                }
                if call.collective != Collective::Send {
                    page.completed(slot, seq);
                }
            }
            page.close_slot(slot);
        }
        over.store(true, Ordering::Relaxed);
        readers.map(|reader| reader.join().unwrap())
    });
    assert!(seen.iter().all(|seen| *seen > 10), "readers starved: {seen:?}");
}

const SIZE: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

#[test]
fn what_is_no_page_is_refused_with_the_reason() {
    let (page, _) = page_and_view();
    let good = content_of(&page);
    StatusView::map(foreign(&good, SIZE).as_fd()).expect("a copy of a page is a page");
    let refused = |descriptor: OwnedFd, why: &str| {
        let error = StatusView::map(descriptor.as_fd()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains(why), "{error}");
    };
    refused(foreign(&good, 0), "not sealed");
    refused(foreign(&good, libc::F_SEAL_GROW), "not sealed");
    refused(foreign(&good[..good.len() - 4096], SIZE), "bytes");
    refused(foreign(&[&good[..], &[0; 4096]].concat(), SIZE), "bytes");
    refused(foreign(&[], SIZE), "bytes");
    refused(foreign(&vec![0; good.len()], SIZE), "begins with");
    let mut newer = good.clone();
    newer[8] += 1;
    refused(foreign(&newer, SIZE), "version");
    refused(File::open("/proc/self/exe").unwrap().into(), "not a memfd");
}

#[test]
fn a_page_cannot_be_resized_or_mapped_for_writing_by_others() {
    let (page, _) = page_and_view();
    let raw = page.descriptor().as_raw_fd();
    for size in [0, memory::BYTES as libc::off_t * 2] {
        // SAFETY: a plain system call on our own descriptor.
        assert_eq!(unsafe { libc::ftruncate(raw, size) }, -1, "resized to {size}");
    }
    // SAFETY: a plain system call on our own descriptor.
    let seals = unsafe { libc::fcntl(raw, libc::F_GET_SEALS) };
    if seals & libc::F_SEAL_FUTURE_WRITE != 0 {
        let mut file = File::from(page.descriptor().try_clone_to_owned().unwrap());
        assert_eq!(file.write(b"x").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}

/// A page with one open slot that is in the middle of work, to be damaged.
fn busy_page() -> Vec<u8> {
    let (page, _) = page_and_view();
    for comm in 0..SLOTS as u64 {
        let slot = page.open_slot(comm, 0, 4).unwrap();
        (1..200).for_each(|seq| page.entered(slot, &call(seq, Collective::Reduce)));
        (1..50).for_each(|seq| page.entered(slot, &call(seq, Collective::Recv)));
        page.completed(slot, 198);
        page.waiting(
            slot,
            Some(WaitingFor { seq: 199, step: 1, peer: 2, receiving: true, since: Duration::ZERO }),
        );
    }
    content_of(&page)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn hostile_pages_never_panic(seed: u64, keep_header: bool, density in 0u32..16) {
        let mut content = busy_page();
        let mut state = seed | 1;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let start = if keep_header { 16 } else { 0 };
        for word in content[start..].chunks_exact_mut(8) {
            if (random() % 16) as u32 <= density {
                let value = random();
                // Small and boundary values pass more of the checks than random ones.
                let value = [value, value % 4, u64::MAX, value % 256][(random() % 4) as usize];
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
        if let Ok(view) = StatusView::map(foreign(&content, SIZE).as_fd()) {
            let _ = view.owner();
            for status in view.read_all() {
                prop_assert!(status.rank < status.nranks);
                prop_assert!(status.recent.len() <= RECENT);
                let _ = format!("{status:?}");
            }
        } else {
            prop_assert!(!keep_header);
        }
    }
}

#[test]
fn meaningless_codes_make_a_slot_unreadable() {
    let (page, _) = page_and_view();
    let slot = page.open_slot(1, 0, 2).unwrap();
    let marker = 0x0123_4567_89ab_cdef;
    page.entered(slot, &Call { seq: marker, ..call(1, Collective::AllReduce) });
    let good = content_of(&page);
    let at = good.windows(8).position(|bytes| bytes == marker.to_le_bytes()).unwrap() + 8;
    for (byte, limit) in [(0, 11), (1, 15), (2, 7), (3, 1)] {
        for value in [limit, 255] {
            let mut content = good.clone();
            content[at + byte] = value;
            let view = StatusView::map(foreign(&content, SIZE).as_fd()).unwrap();
            assert_eq!(view.read(1), None, "byte {byte} = {value}");
        }
        let mut content = good.clone();
        content[at + byte] = limit - 1;
        assert!(StatusView::map(foreign(&content, SIZE).as_fd()).unwrap().read(1).is_some());
    }
}

#[test]
fn processes_have_a_state() {
    let own = process::started(std::process::id()).unwrap();
    assert_eq!(process_state(std::process::id(), own), ProcessState::Running);
    assert_eq!(process_state(std::process::id(), own + 1), ProcessState::Dead);
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let started = process::started(child.id()).unwrap();
    // SAFETY: a signal to our own child, which was not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGSTOP) }, 0);
    let until = Instant::now() + Duration::from_secs(5);
    while process_state(child.id(), started) != ProcessState::Stopped {
        assert!(Instant::now() < until, "{:?}", process_state(child.id(), started));
        thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(process_state(child.id(), started), ProcessState::Dead);
}
