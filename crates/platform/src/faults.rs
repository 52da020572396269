//! Fault injection: a disk that loses power, or that another process changes.
//!
//! Crash consistency is tested at every operation that changes the disk (create, write, sync,
//! rename, remove): a test counts them and reruns the same program with a power cut at each one.
//! After the cut every operation fails, and unsynced data is lost in the worst way a file system
//! allows:
//!
//! - an interrupted write is half done, and unsynced bytes are half lost;
//! - a name created without a sync of its folder is lost;
//! - a rename happened or did not.
//!
//! What remains is a real folder, which the real code then reads.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{
    Clock, Entropy, FileAction, FileError, FileKind, FileReader, FileWriter, Files, Host, InUse,
    Net, Platform, Processes, Shared, Threads, World,
};

/// Time of a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerCut {
    /// Index of the interrupted operation, from 0.
    pub operation: u64,
    /// Whether an atomic operation still took effect.
    pub is_done: bool,
}

/// A platform with a faulty disk; everything else is that of the inner platform.
pub struct FaultyPlatform {
    inner: World,
    disk: FaultyFiles,
}

impl FaultyPlatform {
    /// Behaves like `inner` until the cut; without one it only counts operations.
    pub fn new(inner: &World, cut: Option<PowerCut>) -> Arc<Self> {
        Self::with(inner, cut, None)
    }

    /// Calls `other`, which stands for another process, before an operation that changes the disk.
    pub fn interrupted(
        inner: &World,
        operation: u64,
        other: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::with(inner, None, Some((operation, Box::new(other))))
    }

    fn with(inner: &World, cut: Option<PowerCut>, other: Option<Interference>) -> Arc<Self> {
        let state = State {
            num_operations: 0,
            is_power_off: false,
            unsynced: BTreeSet::new(),
            unsynced_names: BTreeSet::new(),
        };
        let shared =
            Arc::new(Power { inner: Arc::clone(inner), cut, other, state: Mutex::new(state) });
        Arc::new(Self { inner: Arc::clone(inner), disk: FaultyFiles(shared) })
    }

    /// Number of operations that changed the disk.
    pub fn num_operations(&self) -> u64 {
        self.disk.0.lock().num_operations
    }

    /// Whether the power is off.
    pub fn is_power_off(&self) -> bool {
        self.disk.0.lock().is_power_off
    }
}

/// Operation before which another process interferes, and its action.
type Interference = (u64, Box<dyn Fn() + Send + Sync>);

struct Power {
    inner: World,
    cut: Option<PowerCut>,
    other: Option<Interference>,
    state: Mutex<State>,
}

struct State {
    num_operations: u64,
    is_power_off: bool,
    /// Files with unsynced bytes.
    unsynced: BTreeSet<PathBuf>,
    /// Names without a sync of their folder.
    unsynced_names: BTreeSet<PathBuf>,
}

/// Outcome of an operation.
enum Outcome {
    Works,
    /// The power is cut during the operation.
    Cut {
        is_done: bool,
    },
    /// The power is off.
    PowerOff,
}

impl Power {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn operate(&self) -> Outcome {
        let mut state = self.lock();
        if state.is_power_off {
            return Outcome::PowerOff;
        }
        let number = state.num_operations;
        state.num_operations += 1;
        drop(state);
        if let Some((_, other)) = self.other.as_ref().filter(|(operation, _)| *operation == number)
        {
            other();
        }
        match self.cut {
            Some(cut) if cut.operation == number => {
                self.lock().is_power_off = true;
                Outcome::Cut { is_done: cut.is_done }
            }
            _ => Outcome::Works,
        }
    }

    /// Loses everything that is not durable.
    fn lose_unsynced(&self) {
        let state = self.lock();
        let files = self.inner.files();
        for path in &state.unsynced {
            if let Ok(bytes) = files.read(path)
                && let Ok(mut writer) = files.create(path)
            {
                let _ = writer.write_all(&bytes[..bytes.len() / 2]);
            }
        }
        for path in &state.unsynced_names {
            let _ = files.remove_file(path);
        }
    }

    /// Runs an operation that happens as a whole or not at all.
    fn step<T>(
        &self,
        action: FileAction,
        path: &Path,
        operation: impl FnOnce() -> Result<T, FileError>,
        on_success: impl FnOnce(&mut State),
    ) -> Result<T, FileError> {
        match self.operate() {
            Outcome::Works => {
                let done = operation()?;
                on_success(&mut self.lock());
                Ok(done)
            }
            Outcome::Cut { is_done } => {
                if is_done && operation().is_ok() {
                    on_success(&mut self.lock());
                }
                self.lose_unsynced();
                Err(power_off(action, path))
            }
            Outcome::PowerOff => Err(power_off(action, path)),
        }
    }
}

fn power_off(action: FileAction, path: &Path) -> FileError {
    FileError::new(action, path, &io::Error::other("the power is gone"))
}

struct FaultyFiles(Arc<Power>);

impl FaultyFiles {
    fn writer(&self, path: &Path, inner: Box<dyn FileWriter>) -> Box<dyn FileWriter> {
        Box::new(FaultyWriter { power: Arc::clone(&self.0), path: path.to_owned(), inner })
    }
}

impl Files for FaultyFiles {
    fn read(&self, path: &Path) -> Result<Vec<u8>, FileError> {
        if self.0.lock().is_power_off {
            return Err(power_off(FileAction::Read, path));
        }
        self.0.inner.files().read(path)
    }

    fn open(&self, path: &Path) -> Result<Box<dyn FileReader>, FileError> {
        if self.0.lock().is_power_off {
            return Err(power_off(FileAction::Read, path));
        }
        self.0.inner.files().open(path)
    }

    fn write_atomic(&self, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
        let unique = self.0.inner.entropy().u64();
        crate::atomic::replace(self, path, unique, |writer| writer.write_all(bytes))
    }

    fn create(&self, path: &Path) -> Result<Box<dyn FileWriter>, FileError> {
        let is_new = self.0.inner.files().metadata(path).is_none();
        let create = || self.0.inner.files().create(path);
        let inner = self.0.step(FileAction::Create, path, create, |state| {
            state.unsynced.insert(path.to_owned());
            if is_new {
                state.unsynced_names.insert(path.to_owned());
            }
        })?;
        Ok(self.writer(path, inner))
    }

    fn append(&self, path: &Path) -> Result<Box<dyn FileWriter>, FileError> {
        let append = || self.0.inner.files().append(path);
        let inner = self.0.step(FileAction::Write, path, append, |_| {})?;
        Ok(self.writer(path, inner))
    }

    fn create_dir_all(&self, path: &Path) -> Result<(), FileError> {
        let create = || self.0.inner.files().create_dir_all(path);
        self.0.step(FileAction::Create, path, create, |_| {})
    }

    fn list(&self, path: &Path) -> Result<Vec<PathBuf>, FileError> {
        if self.0.lock().is_power_off {
            return Err(power_off(FileAction::List, path));
        }
        self.0.inner.files().list(path)
    }

    fn metadata(&self, path: &Path) -> Option<FileKind> {
        self.0.inner.files().metadata(path)
    }

    fn modified(&self, path: &Path) -> Option<Duration> {
        self.0.inner.files().modified(path)
    }

    fn mark_in_use(&self, path: &Path) -> Result<Box<dyn InUse>, FileError> {
        self.0.inner.files().mark_in_use(path)
    }

    fn is_in_use(&self, path: &Path) -> bool {
        self.0.inner.files().is_in_use(path)
    }

    fn is_open_to_others(&self, path: &Path) -> Result<bool, FileError> {
        self.0.inner.files().is_open_to_others(path)
    }

    fn read_or_create_private(&self, path: &Path, bytes: &[u8]) -> Result<Vec<u8>, FileError> {
        let create = || self.0.inner.files().read_or_create_private(path, bytes);
        self.0.step(FileAction::Create, path, create, |_| {})
    }

    fn rename(&self, source: &Path, target: &Path) -> Result<(), FileError> {
        let rename = || self.0.inner.files().rename(source, target);
        self.0.step(FileAction::Rename, source, rename, |state| {
            // The folder was synced, so all names in it are durable.
            let folder = target.parent();
            state.unsynced_names.retain(|path| path != source && path.parent() != folder);
            // Unsynced bytes stay so under the new name.
            let moved: Vec<PathBuf> =
                state.unsynced.iter().filter(|path| path.starts_with(source)).cloned().collect();
            for path in moved {
                let rest = path.strip_prefix(source).expect("it starts so").to_owned();
                state.unsynced.remove(&path);
                let whole = rest.as_os_str().is_empty();
                state.unsynced.insert(if whole { target.to_owned() } else { target.join(rest) });
            }
        })
    }

    fn remove_file(&self, path: &Path) -> Result<(), FileError> {
        let remove = || self.0.inner.files().remove_file(path);
        self.0.step(FileAction::Remove, path, remove, |state| {
            state.unsynced.remove(path);
            state.unsynced_names.remove(path);
        })
    }

    fn remove_dir_all(&self, path: &Path) -> Result<(), FileError> {
        // File by file, since the power may fail in between.
        let files = self.0.inner.files();
        let mut inside = files.list(path)?;
        inside.reverse();
        for entry in inside {
            match files.metadata(&entry) {
                Some(FileKind::Directory) => self.remove_dir_all(&entry)?,
                _ => self.remove_file(&entry)?,
            }
        }
        self.0.step(FileAction::Remove, path, || files.remove_dir_all(path), |_| {})
    }
}

struct FaultyWriter {
    power: Arc<Power>,
    path: PathBuf,
    inner: Box<dyn FileWriter>,
}

impl Write for FaultyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.power.operate() {
            Outcome::Works => {
                self.power.lock().unsynced.insert(self.path.clone());
                self.inner.write(bytes)
            }
            Outcome::Cut { is_done } => {
                let len = if is_done { bytes.len() } else { bytes.len() / 2 };
                let _ = self.inner.write_all(&bytes[..len]);
                self.power.lock().unsynced.insert(self.path.clone());
                self.power.lose_unsynced();
                Err(power_off(FileAction::Write, &self.path).into())
            }
            Outcome::PowerOff => Err(power_off(FileAction::Write, &self.path).into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl FileWriter for FaultyWriter {
    fn sync(&mut self) -> Result<(), FileError> {
        // The state of the real disk does not matter here.
        let (power, path) = (&self.power, &self.path);
        power.step(
            FileAction::Write,
            path,
            || Ok(()),
            |state| {
                state.unsynced.remove(path);
            },
        )
    }
}

impl Platform for FaultyPlatform {
    fn clock(&self) -> &dyn Clock {
        self.inner.clock()
    }

    fn files(&self) -> &dyn Files {
        &self.disk
    }

    fn threads(&self) -> &dyn Threads {
        self.inner.threads()
    }

    fn net(&self) -> &dyn Net {
        self.inner.net()
    }

    fn processes(&self) -> &dyn Processes {
        self.inner.processes()
    }

    fn shared(&self) -> &dyn Shared {
        self.inner.shared()
    }

    fn entropy(&self) -> &dyn Entropy {
        self.inner.entropy()
    }

    fn host(&self) -> &dyn Host {
        self.inner.host()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScratchDir;

    #[test]
    fn a_platform_without_faults_passes_every_check() {
        let world: World = FaultyPlatform::new(&crate::real(), None);
        for check in crate::conformance::checks() {
            if check.name.contains("file") || check.name.contains("rename") {
                let scratch = ScratchDir::new(&world, "faulty").unwrap();
                (check.run)(&world, scratch.path());
            }
        }
    }

    #[test]
    fn an_atomic_write_leaves_the_old_or_the_new_file_at_any_power_cut() {
        let real = crate::real();
        let scratch = ScratchDir::new(&real, "faulty").unwrap();
        let path = scratch.path().join("file");
        let mut found_contents = BTreeSet::new();
        for operation in 0.. {
            for is_done in [false, true] {
                real.files().write_atomic(&path, b"the old").unwrap();
                let world = FaultyPlatform::new(&real, Some(PowerCut { operation, is_done }));
                let written = world.files().write_atomic(&path, b"the new one");
                let found = real.files().read(&path).unwrap();
                assert!(found == b"the old" || found == b"the new one", "{operation} {found:?}");
                assert!(written.is_err() || found == b"the new one");
                found_contents.insert(found);
                if !world.is_power_off() {
                    assert_eq!(found_contents.len(), 2, "both were found_contents");
                    assert!(operation >= 4, "create, write, sync, rename");
                    return;
                }
            }
        }
    }

    #[test]
    fn a_write_without_a_sync_is_lost() {
        let real = crate::real();
        let scratch = ScratchDir::new(&real, "faulty").unwrap();
        let [one, two] = ["one", "two"].map(|name| scratch.path().join(name));
        let world = FaultyPlatform::new(&real, Some(PowerCut { operation: 3, is_done: true }));
        let mut writer = world.files().create(&one).unwrap();
        writer.write_all(b"twelve bytes").unwrap();
        drop(writer);
        // The name becomes durable, the bytes do not.
        world.files().rename(&one, &two).unwrap();
        assert!(world.files().create(&one).is_err());
        assert_eq!(real.files().read(&two).unwrap(), b"twelve");
        assert_eq!(real.files().metadata(&one), None);
    }
}
