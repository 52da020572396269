//! Compiled kernels on disk: only the first process of a machine compiles them.
//!
//! A file has a hash of its name and content in front of the machine code, and is replaced as a
//! whole, so that the ranks of a host can write it at once. A file that is damaged, or belongs
//! under another name, is compiled again and replaced. Every failure only costs time; so does
//! removing the folder.

use lockstep_platform::World;
use lockstep_tensor::device::{KernelCache, NoCache};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Kernel cache in a folder.
pub struct DiskCache {
    world: World,
    folder: PathBuf,
}

/// The user's cache of kernels: `lockstep/kernels` in `XDG_CACHE_HOME`, or in `.cache` in `HOME`;
/// where neither names a folder, nothing is kept.
pub fn open(world: &World) -> Arc<dyn KernelCache> {
    match user_folder(|name| world.host().env(name)) {
        Some(folder) => Arc::new(DiskCache::new(world, folder)),
        None => Arc::new(NoCache),
    }
}

fn user_folder(env: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let folder = |name: &str| env(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("lockstep").join("kernels"))
}

impl DiskCache {
    /// A cache in this folder, which is created when the first kernel is stored.
    pub fn new(world: &World, folder: PathBuf) -> Self {
        Self { world: Arc::clone(world), folder }
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        let is_name = Path::new(key).file_name().is_some_and(|name| name == key);
        is_name.then(|| self.folder.join(key))
    }
}

impl KernelCache for DiskCache {
    fn load(&self, key: &str) -> Option<Vec<u8>> {
        let mut bytes = self.world.files().read(&self.path(key)?).ok()?;
        let (sum, code) = bytes.split_first_chunk::<{ blake3::OUT_LEN }>()?;
        if checksum(key, code) != *sum {
            return None;
        }
        Some(bytes.split_off(blake3::OUT_LEN))
    }

    fn store(&self, key: &str, code: &[u8]) {
        let Some(path) = self.path(key) else { return };
        let bytes = [checksum(key, code).as_bytes(), code].concat();
        let files = self.world.files();
        // The machine code in memory is as good; the next process compiles it again.
        let _ = files.create_dir_all(&self.folder).and_then(|()| files.write_atomic(&path, &bytes));
    }
}

fn checksum(key: &str, code: &[u8]) -> blake3::Hash {
    blake3::Hasher::new().update(key.as_bytes()).update(code).finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_platform::ScratchDir;

    const KEY: &str = "norm.cu-bf16-sm_90-0123456789abcdef";
    const CODE: &[u8] = b"\x7fELF machine code";

    /// A cache in a folder that does not exist yet.
    fn cache(scratch: &ScratchDir) -> DiskCache {
        DiskCache::new(&lockstep_platform::real(), scratch.path().join("lockstep/kernels"))
    }

    #[test]
    fn stored_kernels_are_found_by_another_process() {
        let scratch = ScratchDir::new(&lockstep_platform::real(), "kernels").unwrap();
        assert_eq!(cache(&scratch).load(KEY), None);
        for code in [&b"another version"[..], CODE] {
            cache(&scratch).store(KEY, code);
        }
        assert_eq!(cache(&scratch).load(KEY).as_deref(), Some(CODE));
        assert_eq!(cache(&scratch).load("norm.cu-f16-sm_90-0123456789abcdef"), None);
        let files = cache(&scratch).world.files().list(&cache(&scratch).folder).unwrap();
        assert_eq!(files, [cache(&scratch).folder.join(KEY)], "no temporary file is left");
    }

    #[test]
    fn a_damaged_kernel_is_not_used_and_is_replaced() {
        let scratch = ScratchDir::new(&lockstep_platform::real(), "kernels").unwrap();
        let cache = cache(&scratch);
        cache.store(KEY, CODE);
        let (files, path) = (cache.world.files(), cache.path(KEY).unwrap());
        let whole = files.read(&path).unwrap();
        let flipped: Vec<u8> = whole.iter().map(|byte| byte ^ 1).collect();
        for damaged in [&whole[..whole.len() - 1], &whole[..31], &whole[..0], &flipped[..]] {
            files.write_atomic(&path, damaged).unwrap();
            assert_eq!(cache.load(KEY), None, "{} bytes", damaged.len());
            cache.store(KEY, CODE);
            assert_eq!(cache.load(KEY).as_deref(), Some(CODE));
        }
        let other = "norm.cu-f16-sm_90-0123456789abcdef";
        files.rename(&path, &cache.path(other).unwrap()).unwrap();
        assert_eq!(cache.load(other), None, "machine code belongs to its name");
    }

    #[test]
    fn a_folder_that_cannot_be_written_only_costs_time() {
        let scratch = ScratchDir::new(&lockstep_platform::real(), "kernels").unwrap();
        let cache = cache(&scratch);
        cache.world.files().write_atomic(&scratch.path().join("lockstep"), b"a file").unwrap();
        cache.store(KEY, CODE);
        assert_eq!(cache.load(KEY), None);
        for key in ["", "..", "../norm", "a/b"] {
            assert_eq!(cache.path(key), None, "{key} is no file of the folder");
        }
    }

    #[test]
    fn the_folder_is_in_the_users_cache() {
        let folder = |cache: Option<&str>, home: Option<&str>| {
            let env = |name: &str| if name == "HOME" { home } else { cache }.map(str::to_owned);
            user_folder(env).map(|folder| folder.display().to_string())
        };
        let text = |path: &str| Some(path.to_owned());
        assert_eq!(folder(Some("/c"), Some("/h")), text("/c/lockstep/kernels"));
        for cache in [None, Some(""), Some("relative")] {
            assert_eq!(folder(cache, Some("/h")), text("/h/.cache/lockstep/kernels"));
        }
        assert_eq!(folder(None, None), None);
    }
}
