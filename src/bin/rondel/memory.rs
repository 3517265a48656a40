//! Memory that is left: on this host, for this group of processes, for one process.

use std::path::Path;

/// What limits new processes here. `None`: the system does not say, or there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Available {
    /// Bytes that all of them may take together.
    pub(crate) together: Option<u64>,
    /// Bytes of address space that each of them may have (`ulimit -v`).
    pub(crate) each: Option<u64>,
}

/// Asks the system.
pub(crate) fn available() -> Available {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let host = read("/proc/meminfo").and_then(|text| kib_after(&text, "MemAvailable:"));
    let group = read("/proc/self/cgroup").and_then(|text| left_in_group(Path::new("/sys/fs/cgroup"), &text));
    Available { together: host.into_iter().chain(group).min(), each: address_space() }
}

/// The number of kB behind a name, in bytes.
fn kib_after(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// What the control group of this process, and the groups around it, leave. `membership` is `/proc/self/cgroup`.
fn left_in_group(root: &Path, membership: &str) -> Option<u64> {
    let path = membership.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let number = |group: &Path, file: &str| -> Option<u64> {
        std::fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
    };
    // Pages of files that nobody has used for long are given up before anything is refused.
    let idle = |group: &Path| -> u64 {
        let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let line = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
        line.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0)
    };
    let left = |group: &Path| {
        let (most, used) = (number(group, "memory.max")?, number(group, "memory.current")?);
        Some(most.saturating_sub(used.saturating_sub(idle(group))))
    };
    let group = root.join(path);
    group.ancestors().take_while(|group| group.starts_with(root)).filter_map(left).min()
}

/// The limit of this process's address space, if it has one.
pub(crate) fn address_space() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the structure, which outlives it.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    (answer == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_bytes() {
        let text = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n";
        assert_eq!(kib_after(text, "MemAvailable:"), Some(8_192_000_000));
        assert_eq!(kib_after("MemTotal: 1 kB\n", "MemAvailable:"), None);
        assert!(available().together.is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn the_narrowest_group_around_this_process_counts() {
        let root = std::env::temp_dir().join(format!("rondel-groups-{}", std::process::id()));
        let group = root.join("outer/inner");
        std::fs::create_dir_all(&group).unwrap();
        let write = |at: &Path, file: &str, text: &str| std::fs::write(at.join(file), text).unwrap();
        write(&group, "memory.max", "max\n");
        write(&group, "memory.current", "10\n");
        write(&root.join("outer"), "memory.max", "1000\n");
        write(&root.join("outer"), "memory.current", "900\n");
        write(&root.join("outer"), "memory.stat", "anon 600\ninactive_file 300\n");
        let left = left_in_group(&root, "0::/outer/inner\n");
        let elsewhere = left_in_group(&root, "0::/\n");
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!((left, elsewhere), (Some(400), None));
        assert_eq!(left_in_group(&root, "4:memory:/old\n"), None);
    }
}
