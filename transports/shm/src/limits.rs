//! Whether memory for a lane can be had, asked before any of it is touched: a limit that is found by touching ends the
//! process (SIGXFSZ, SIGBUS, or the kernel's choice of a victim).

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Why there is no room, as a sentence with what is needed, what there is, and what to do.
///
/// `what`: what it is for. `file`: bytes of the file, holes included. `memory`: bytes of it that are used. `mapped`: address
/// space.
pub(crate) fn check(what: &str, file: u64, memory: u64, mapped: u64) -> Result<(), String> {
    if let Some(limit) = limit_of(libc::RLIMIT_FSIZE).filter(|&limit| limit < file) {
        return Err(format!(
            "{what} is a file of {} KiB, and this process may make files of {} KiB (RLIMIT_FSIZE): raise the limit \
             (ulimit -f)",
            file >> 10,
            limit >> 10
        ));
    }
    if let Some(limit) = limit_of(libc::RLIMIT_AS) {
        let used = address_space().unwrap_or(0);
        if used.saturating_add(mapped) > limit {
            return Err(format!(
                "{what} maps {} KiB, and this process has {} KiB of address space left of {} KiB (RLIMIT_AS): raise the \
                 limit (ulimit -v)",
                mapped >> 10,
                limit.saturating_sub(used) >> 10,
                limit >> 10
            ));
        }
    }
    let free = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    if let Some(free) = free.filter(|&free| free < memory) {
        return Err(format!(
            "{what} needs {} KiB, and the system has {} KiB available",
            memory >> 10,
            free >> 10
        ));
    }
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    match tightest(Path::new("/sys/fs/cgroup"), &membership).filter(|room| room.left() < memory) {
        None => Ok(()),
        Some(room) => Err(format!(
            "{what} needs {} KiB, and the memory cgroup {} has {} KiB left of {} KiB: raise its limit (memory.max; for \
             a container: --memory)",
            memory >> 10,
            room.group.display(),
            room.left() >> 10,
            room.limit >> 10
        )),
    }
}

/// Bytes that the kernel can give without swapping, by the text of `/proc/meminfo`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

fn limit_of(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    let answer = unsafe { libc::getrlimit(resource, &raw mut limit) };
    (answer == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Bytes of address space that this process has mapped.
fn address_space() -> Option<u64> {
    let pages: u64 = fs::read_to_string("/proc/self/statm").ok()?.split(' ').next()?.parse().ok()?;
    Some(pages * page_bytes())
}

/// Bytes of a page.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: takes no pointers.
    match unsafe { libc::sysconf(libc::_SC_PAGESIZE) } {
        bytes @ 1.. => bytes as u64,
        _ => 4096,
    }
}

/// What a memory cgroup allows.
#[derive(Debug, PartialEq, Eq)]
struct Room {
    group: PathBuf,
    limit: u64,
    used: u64,
    /// Part of `used` that the kernel gives up first.
    reclaimable: u64,
}

impl Room {
    fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used.saturating_sub(self.reclaimable))
    }
}

/// Names of the files that say so, for the two versions of cgroups.
struct Files {
    limit: &'static str,
    used: &'static str,
    inactive: &'static str,
}

const VERSION_2: Files = Files { limit: "memory.max", used: "memory.current", inactive: "inactive_file " };
const VERSION_1: Files =
    Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", inactive: "total_inactive_file " };

/// The memory cgroup with the least room among those that this process is in. `mounted`: where cgroups are mounted;
/// `membership`: the text of `/proc/self/cgroup`.
fn tightest(mounted: &Path, membership: &str) -> Option<Room> {
    let groups = membership.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (root, files) = match controllers {
            "" => (mounted.to_path_buf(), &VERSION_2),
            _ if controllers.split(',').any(|name| name == "memory") => (mounted.join("memory"), &VERSION_1),
            _ => return None,
        };
        Some((root, path.trim_start_matches('/').to_owned(), files))
    });
    let rooms = groups.flat_map(|(root, path, files)| {
        let up = Path::new(&path).ancestors().map(|group| root.join(group)).collect::<Vec<_>>();
        up.into_iter().filter_map(move |group| room_of(group, files))
    });
    rooms.min_by_key(Room::left)
}

fn room_of(group: PathBuf, files: &Files) -> Option<Room> {
    // A group without a limit says "max", which is no number.
    let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number(files.limit)?, number(files.used)?);
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let inactive = stat.lines().find_map(|line| line.strip_prefix(files.inactive)?.parse().ok());
    Some(Room { group, limit, used, reclaimable: inactive.unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("rondel-shm-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a directory");
            Self(path)
        }
        fn group(&self, path: &str, files: &[(&str, &str)]) {
            let group = self.0.join(path);
            fs::create_dir_all(&group).expect("a directory");
            files.iter().for_each(|(name, text)| fs::write(group.join(name), text).expect("a file"));
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).expect("our own directory");
        }
    }

    #[test]
    fn the_tightest_group_up_the_tree_counts() {
        let tree = Tree::new("v2");
        tree.group("a", &[("memory.max", "1000000\n"), ("memory.current", "400000\n")]);
        tree.group("a/b", &[("memory.max", "max\n"), ("memory.current", "399\n")]);
        tree.group(
            "a/b/c",
            &[
                ("memory.max", "900000\n"),
                ("memory.current", "500000\n"),
                ("memory.stat", "anon 1\ninactive_file 300000\nactive_file 7\n"),
            ],
        );
        let room = tightest(&tree.0, "0::/a/b/c\n").expect("two groups have limits");
        assert_eq!((room.group.clone(), room.left()), (tree.0.join("a"), 600_000));
        tree.group("a/b/c", &[("memory.stat", "")]);
        assert_eq!(tightest(&tree.0, "0::/a/b/c\n").expect("a limit").left(), 400_000);
        assert_eq!(tightest(&tree.0, "0::/elsewhere\n"), None);
    }

    #[test]
    fn what_the_system_has_left_is_read() {
        let text = "MemTotal:       16384 kB\nMemFree:         100 kB\nMemAvailable:    8192 kB\n";
        assert_eq!(available(text), Some(8 << 20));
        assert_eq!(available("MemTotal: 5 kB\n"), None);
        let text = check("a test", 0, u64::MAX / 2, 0).expect_err("nobody has that");
        assert!(text.starts_with("a test needs ") && text.contains(" KiB"), "{text}");
    }

    #[test]
    fn the_first_version_of_cgroups_is_read_too() {
        let tree = Tree::new("v1");
        tree.group(
            "memory/job",
            &[
                ("memory.limit_in_bytes", "5000\n"),
                ("memory.usage_in_bytes", "6000\n"),
                ("memory.stat", "total_inactive_file 500\n"),
            ],
        );
        let room = tightest(&tree.0, "3:cpu:/job\n4:memory:/job\n0::/\n").expect("a limit");
        assert_eq!(room.left(), 0);
    }
}
