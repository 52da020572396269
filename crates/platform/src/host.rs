//! Facts about this machine and this process.

use std::path::PathBuf;

/// A machine, as the process on it sees it.
pub trait Host: Send + Sync {
    /// The most memory this process has had resident so far; 0 where the system does not say.
    fn peak_rss_bytes(&self) -> u64;

    /// The memory this process has resident now; 0 where the system does not say.
    fn current_rss_bytes(&self) -> u64;

    /// The memory this process has resident now, where a page that n processes share counts as an
    /// n-th for each; 0 where the system does not say. It adds up over the processes of a host.
    fn proportional_rss_bytes(&self) -> u64;

    /// The memory this process may use: the machine's, or less where a limit is set; 0 where
    /// the system does not say.
    fn memory_bytes(&self) -> u64;

    /// The host's name.
    fn name(&self) -> String;

    /// An environment variable; `None` when it is unset or not text.
    fn env(&self, name: &str) -> Option<String>;

    /// The folder for temporary files.
    fn temp_dir(&self) -> PathBuf;
}
