//! Host facts from `/proc` and `/sys`.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is where the environment and the kernel's files are read"
)]

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Host;

pub(crate) struct RealHost;

impl Host for RealHost {
    fn peak_rss_bytes(&self) -> u64 {
        kernel_bytes("/proc/self/status", "VmHWM:")
    }

    fn current_rss_bytes(&self) -> u64 {
        resident_pages().unwrap_or(0) * rustix::param::page_size() as u64
    }

    fn proportional_rss_bytes(&self) -> u64 {
        kernel_bytes("/proc/self/smaps_rollup", "Pss:")
    }

    fn cpu_time(&self) -> Option<Duration> {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.try_into().ok()
    }

    fn clock_hertz(&self) -> Option<f64> {
        let kilohertz = of_cpus(CPUS, "cpufreq/scaling_cur_freq", MAX_CLOCKS);
        let (sum, num) = kilohertz.fold((0, 0), |(sum, num), value| (sum + value, num + 1));
        (num > 0).then(|| 1e3 * sum as f64 / f64::from(num))
    }

    fn throttle_count(&self) -> Option<u64> {
        let mut counts = of_cpus(CPUS, "thermal_throttle/core_throttle_count", MAX_CPUS);
        counts.next().map(|first| counts.fold(first, |sum, count| sum + count))
    }

    fn memory_bytes(&self) -> u64 {
        let machine = kernel_bytes("/proc/meminfo", "MemTotal:");
        // Inside a container the control group's limit counts.
        let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
        match limit.and_then(|text| text.trim().parse::<u64>().ok()) {
            Some(limit) if machine > 0 => machine.min(limit),
            _ => machine,
        }
    }

    fn name(&self) -> String {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    }

    fn env(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn terminal_columns(&self) -> Option<usize> {
        let stderr = rustix::termios::tcgetwinsize(std::io::stderr());
        let size = stderr.or_else(|_| rustix::termios::tcgetwinsize(std::io::stdout())).ok()?;
        Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
    }

    fn temp_dir(&self) -> PathBuf {
        std::env::temp_dir()
    }

    fn runtime_dir(&self) -> PathBuf {
        let own = rustix::process::geteuid().as_raw();
        // After `sudo` the variable may still name the folder of another user.
        let is_own = |path: &PathBuf| {
            let is_private = |metadata: std::fs::Metadata| {
                let is_open_to_others = metadata.mode() & 0o077 != 0;
                metadata.is_dir() && metadata.uid() == own && !is_open_to_others
            };
            path.is_absolute() && std::fs::metadata(path).is_ok_and(is_private)
        };
        match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(is_own) {
            Some(session) => session.join("lockstep"),
            None => std::env::temp_dir().join(format!("lockstep-{own}")),
        }
    }
}

/// Folder of the processors.
const CPUS: &str = "/sys/devices/system/cpu";

/// Processors of a host, at most.
const MAX_CPUS: usize = 1 << 12;

/// Processors whose clocks are read, at most: some drivers interrupt each of them for it.
const MAX_CLOCKS: usize = 16;

/// Numbers in a file of each processor, those without it left out; of the first `max` processors.
/// Allocates no memory.
fn of_cpus(folder: &str, file: &str, max: usize) -> impl Iterator<Item = u64> {
    let mut path = [0; 128];
    let is_there = move |cpu: &usize| {
        path_in(&mut path, format_args!("{folder}/cpu{cpu}"))
            .is_some_and(|path| std::fs::metadata(path).is_ok())
    };
    (0..max).take_while(is_there).filter_map(move |cpu| {
        let path = path_in(&mut path, format_args!("{folder}/cpu{cpu}/{file}"))?;
        let mut text = [0; 32];
        let len = std::fs::File::open(path).ok()?.read(&mut text).ok()?;
        std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
    })
}

/// A path in a buffer, if it has room.
fn path_in<'a>(buffer: &'a mut [u8], path: std::fmt::Arguments<'_>) -> Option<&'a Path> {
    let (capacity, mut rest) = (buffer.len(), &mut *buffer);
    rest.write_fmt(path).ok()?;
    let len = capacity - rest.len();
    std::str::from_utf8(&buffer[..len]).ok().map(Path::new)
}

/// Resident pages of this process, read without allocating memory.
fn resident_pages() -> Option<u64> {
    let mut text = [0; 128];
    let len = std::fs::File::open("/proc/self/statm").ok()?.read(&mut text).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Value of a line like `VmHWM:   1234 kB` in a kernel file, in bytes.
fn kernel_bytes(path: &str, key: &str) -> u64 {
    std::fs::read_to_string(path).ok().and_then(|text| find_kib(&text, key)).unwrap_or(0) * 1024
}

fn find_kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_found_by_their_key() {
        let text = "VmPeak:\t  99 kB\nVmHWM:\t  12 kB\nVmRSS:\t   7 kB\n";
        assert_eq!(find_kib(text, "VmHWM:"), Some(12));
        assert_eq!(find_kib(text, "VmSwap:"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn touching_memory_shows_in_the_peak() {
        let before = RealHost.current_rss_bytes();
        let block = vec![1_u8; 64 << 20];
        let after = RealHost.peak_rss_bytes();
        assert!(block.iter().all(|&byte| byte == 1));
        assert!(after >= before + (48 << 20), "{before} then {after}");
    }

    #[test]
    fn numbers_of_processors_are_found_where_they_are_and_absent_elsewhere() {
        let world = crate::real();
        let scratch = crate::ScratchDir::new(&world, "processors").unwrap();
        let folder = scratch.path().display().to_string();
        let found = |max| of_cpus(&folder, "cpufreq/now", max).collect::<Vec<_>>();
        assert_eq!(found(8), [0; 0]);
        for (cpu, text) in [(0, Some("2000\n")), (1, None), (2, Some("3000\n")), (4, Some("9\n"))] {
            let folder = scratch.path().join(format!("cpu{cpu}/cpufreq"));
            std::fs::create_dir_all(&folder).unwrap();
            if let Some(text) = text {
                std::fs::write(folder.join("now"), text).unwrap();
            }
        }
        // The second has no such file, and the fourth is not there.
        assert_eq!(found(8), [2000, 3000]);
        assert_eq!(found(2), [2000]);
    }

    #[test]
    fn work_takes_time_of_a_processor() {
        let before = RealHost.cpu_time().expect("this system measures it");
        let sum = (0..20_000_000_u64).fold(0, |sum, it| std::hint::black_box(sum ^ it));
        std::hint::black_box(sum);
        assert!(RealHost.cpu_time().expect("as before") > before);
    }

    #[test]
    fn cargo_is_in_the_environment_of_its_tests() {
        assert!(RealHost.env("CARGO_MANIFEST_DIR").is_some());
        assert_eq!(RealHost.env("LOCKSTEP_NOT_A_VARIABLE"), None);
    }
}
