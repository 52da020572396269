//! Machine code of kernels between processes.

/// Machine code of kernels between processes; files of the platform, or nothing.
pub trait KernelCache: Send + Sync {
    /// Machine code stored under a key, which names a file.
    fn load(&self, key: &str) -> Option<Vec<u8>>;
    /// Stores machine code; failures only cost time.
    fn store(&self, key: &str, code: &[u8]);
}

/// A cache that keeps nothing: every process compiles its kernels.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCache;

impl KernelCache for NoCache {
    fn load(&self, _key: &str) -> Option<Vec<u8>> {
        None
    }

    fn store(&self, _key: &str, _code: &[u8]) {}
}
