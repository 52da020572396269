//! Facts about this machine and this process.

use std::path::PathBuf;
use std::time::Duration;

/// Host of this process.
pub trait Host: Send + Sync {
    /// Peak resident set size of this process; 0 if unknown.
    fn peak_rss_bytes(&self) -> u64;

    /// Current resident set size of this process; 0 if unknown. Allocates no memory.
    fn current_rss_bytes(&self) -> u64;

    /// Current proportional set size of this process: a page shared by n processes counts 1/n; 0 if
    /// unknown. It is additive over the processes of a host.
    fn proportional_rss_bytes(&self) -> u64;

    /// Time that this process has spent on processors, over all threads; `None` if unknown.
    /// Allocates no memory.
    fn cpu_time(&self) -> Option<Duration>;

    /// Mean clock frequency of the host's processors now, in hertz; `None` if the host does not
    /// say. Allocates no memory.
    fn clock_hertz(&self) -> Option<f64>;

    /// Times that the host's cores were throttled because of their temperature, since it started;
    /// `None` if it does not say. Allocates no memory.
    fn throttle_count(&self) -> Option<u64>;

    /// Memory available to this process: that of the machine, or a lower limit; 0 if unknown.
    fn memory_bytes(&self) -> u64;

    /// Host name.
    fn name(&self) -> String;

    /// Environment variable; `None` if it is unset or not text.
    fn env(&self, name: &str) -> Option<String>;

    /// Width of the terminal of standard error, or else of standard output; `None` if neither is a
    /// terminal that tells it.
    fn terminal_columns(&self) -> Option<usize>;

    /// Folder of temporary files.
    fn temp_dir(&self) -> PathBuf;

    /// Folder of this program's files that live as long as this user's session on this host; may
    /// not exist yet. `lockstep` in `XDG_RUNTIME_DIR` where that belongs to this user alone, else
    /// `lockstep-UID` in the folder of temporary files. The latter can be taken by another user, so
    /// access it by [`Files::read_or_create_private`](crate::Files::read_or_create_private) only.
    fn runtime_dir(&self) -> PathBuf;
}
