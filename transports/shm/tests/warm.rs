//! A warm message allocates nothing and asks nothing of the kernel, which hears from an endpoint once in thousands of polls.

mod rig;

use rig::{pair, recv, send};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    os::unix::process::ExitStatusExt,
    process::Command,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting for each thread.
struct Counting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no counter any more, and nobody to ask for it.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Names the role of this program as the child of a test.
const ROLE: &str = "SHM_TEST_ROLE";

/// Exchanges messages of some sizes. `warm` is called after the first rounds, `over` before anything is taken down.
fn exchange(rounds: u64, warm: impl Fn(), over: impl Fn()) {
    let (mut a, lane_a, mut b, lane_b) = pair();
    let (src, mut dst) = (vec![1u8; 50_000], [vec![0u8; 50_000], vec![0u8; 50_000]]);
    let mut events = Vec::with_capacity(64);
    for round in 0..rounds {
        if round == 10 {
            warm();
        }
        for size in [8, 5000, 50_000] {
            let [to_a, to_b] = &mut dst;
            send(&mut a, lane_a, &src[..size], 1);
            recv(&mut a, lane_a, &mut to_a[..size], 2);
            send(&mut b, lane_b, &src[..size], 3);
            recv(&mut b, lane_b, &mut to_b[..size], 4);
            while events.len() < 4 {
                a.poll(&mut events, 1 << 20);
                b.poll(&mut events, 1 << 20);
            }
            events.clear();
        }
    }
    over();
}

#[test]
fn warm_messages_allocate_nothing() {
    let (warm, after) = (Cell::new(0), Cell::new(0));
    exchange(100, || warm.set(ALLOCATIONS.get()), || after.set(ALLOCATIONS.get()));
    assert!(warm.get() > 0, "the counter works");
    assert_eq!(after.get() - warm.get(), 0);
}

/// The part of the test below that any call of the kernel but the last ends.
#[test]
fn child_that_may_call_nothing() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    // SAFETY: ends this process.
    exchange(250, forbid_calls, || unsafe { libc::_exit(0) });
}

#[test]
fn warm_messages_call_nothing() {
    let program = std::env::current_exe().expect("the path of this test");
    let status = Command::new(program)
        .args(["child_that_may_call_nothing", "--exact", "--test-threads=1"])
        .env(ROLE, "1")
        .status()
        .expect("a child");
    assert_eq!((status.code(), status.signal()), (Some(0), None), "SIGSYS: it called the kernel");
}

/// From now on every system call of this thread ends the process, but for its end.
fn forbid_calls() {
    let line = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let allowed = libc::SYS_exit_group as u32;
    let mut program = [
        line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, allowed),
        line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter is valid for the call, which copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}
