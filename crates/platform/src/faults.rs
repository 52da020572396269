//! A disk that fails on cue: the power goes at a chosen operation.
//!
//! The promise "whatever happens, a whole checkpoint remains" is about moments, so a test visits
//! every one: it counts the operations that change a disk (create, write, sync, rename, remove) and
//! runs the same program once for each of them with the power cut there. From then on nothing works
//! any more, and what was not made durable is lost in the worst way that a file system may lose it:
//!
//! - a write that was cut is half done; bytes that were not synced are half gone;
//! - a name that was created without a sync of its folder is gone;
//! - a rename happened or did not.
//!
//! What remains is a real folder, which the real code then reads.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    Clock, Entropy, FileAction, FileError, FileKind, FileReader, FileWriter, Files, Host, Net,
    Platform, Processes, Shared, Threads, World,
};

/// When the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The operation during which it does, counted from 0.
    pub operation: u64,
    /// Whether that operation still reached the disk, where it is one that does or does not.
    pub is_done: bool,
}

/// A world whose disk fails on cue; everything else is that of another world.
pub struct Faulty {
    inner: World,
    disk: FaultyFiles,
}

impl Faulty {
    /// A world like `inner` until the cut; without one it only counts.
    pub fn new(inner: &World, cut: Option<Cut>) -> Arc<Self> {
        let state = State {
            num_operations: 0,
            is_dark: false,
            unsynced: BTreeSet::new(),
            fleeting: BTreeSet::new(),
        };
        let shared = Arc::new(Power { inner: Arc::clone(inner), cut, state: Mutex::new(state) });
        Arc::new(Self { inner: Arc::clone(inner), disk: FaultyFiles(shared) })
    }

    /// How many operations have changed the disk.
    pub fn num_operations(&self) -> u64 {
        self.disk.0.lock().num_operations
    }

    /// Whether the power is gone.
    pub fn is_dark(&self) -> bool {
        self.disk.0.lock().is_dark
    }
}

struct Power {
    inner: World,
    cut: Option<Cut>,
    state: Mutex<State>,
}

struct State {
    num_operations: u64,
    is_dark: bool,
    /// Files with bytes that no sync has reached.
    unsynced: BTreeSet<PathBuf>,
    /// Names that no sync of their folder has reached.
    fleeting: BTreeSet<PathBuf>,
}

/// What an operation may do.
enum Fate {
    Works,
    /// The power goes in the middle of it.
    Cut {
        is_done: bool,
    },
    /// There is no power.
    Dark,
}

impl Power {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn operate(&self) -> Fate {
        let mut state = self.lock();
        if state.is_dark {
            return Fate::Dark;
        }
        let number = state.num_operations;
        state.num_operations += 1;
        match self.cut {
            Some(cut) if cut.operation == number => {
                state.is_dark = true;
                Fate::Cut { is_done: cut.is_done }
            }
            _ => Fate::Works,
        }
    }

    /// Loses what was not made durable.
    fn lose(&self) {
        let state = self.lock();
        let files = self.inner.files();
        for path in &state.unsynced {
            if let Ok(bytes) = files.read(path)
                && let Ok(mut writer) = files.create(path)
            {
                let _ = writer.write_all(&bytes[..bytes.len() / 2]);
            }
        }
        for path in &state.fleeting {
            let _ = files.remove_file(path);
        }
    }

    /// An operation that happens or does not.
    fn step<T>(
        &self,
        action: FileAction,
        path: &Path,
        operation: impl FnOnce() -> Result<T, FileError>,
        note: impl FnOnce(&mut State),
    ) -> Result<T, FileError> {
        match self.operate() {
            Fate::Works => {
                let done = operation()?;
                note(&mut self.lock());
                Ok(done)
            }
            Fate::Cut { is_done } => {
                if is_done && operation().is_ok() {
                    note(&mut self.lock());
                }
                self.lose();
                Err(dark(action, path))
            }
            Fate::Dark => Err(dark(action, path)),
        }
    }
}

fn dark(action: FileAction, path: &Path) -> FileError {
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
        if self.0.lock().is_dark {
            return Err(dark(FileAction::Read, path));
        }
        self.0.inner.files().read(path)
    }

    fn open(&self, path: &Path) -> Result<Box<dyn FileReader>, FileError> {
        if self.0.lock().is_dark {
            return Err(dark(FileAction::Read, path));
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
                state.fleeting.insert(path.to_owned());
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
        if self.0.lock().is_dark {
            return Err(dark(FileAction::List, path));
        }
        self.0.inner.files().list(path)
    }

    fn metadata(&self, path: &Path) -> Option<FileKind> {
        self.0.inner.files().metadata(path)
    }

    fn is_open_to_others(&self, path: &Path) -> Result<bool, FileError> {
        self.0.inner.files().is_open_to_others(path)
    }

    fn rename(&self, source: &Path, target: &Path) -> Result<(), FileError> {
        let rename = || self.0.inner.files().rename(source, target);
        self.0.step(FileAction::Rename, source, rename, |state| {
            // The folder is synced: every name in it is durable from now on.
            let folder = target.parent();
            state.fleeting.retain(|path| path != source && path.parent() != folder);
            // Bytes that were not synced stay so under the new name.
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
            state.fleeting.remove(path);
        })
    }

    fn remove_dir_all(&self, path: &Path) -> Result<(), FileError> {
        // File by file, since the power may go in the middle.
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
            Fate::Works => {
                self.power.lock().unsynced.insert(self.path.clone());
                self.inner.write(bytes)
            }
            Fate::Cut { is_done } => {
                let len = if is_done { bytes.len() } else { bytes.len() / 2 };
                let _ = self.inner.write_all(&bytes[..len]);
                self.power.lock().unsynced.insert(self.path.clone());
                self.power.lose();
                Err(dark(FileAction::Write, &self.path).into())
            }
            Fate::Dark => Err(dark(FileAction::Write, &self.path).into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl FileWriter for FaultyWriter {
    fn sync(&mut self) -> Result<(), FileError> {
        // Whether the real disk has it too makes no difference here.
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

impl Platform for Faulty {
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
    fn a_world_that_never_fails_keeps_every_promise() {
        let world: World = Faulty::new(&crate::real(), None);
        for check in crate::conformance::checks() {
            if check.name.contains("file") || check.name.contains("rename") {
                let scratch = ScratchDir::new(&world, "faulty").unwrap();
                (check.run)(&world, scratch.path());
            }
        }
    }

    #[test]
    fn an_atomic_write_leaves_the_old_or_the_new_wherever_the_power_goes() {
        let real = crate::real();
        let scratch = ScratchDir::new(&real, "faulty").unwrap();
        let path = scratch.path().join("file");
        let mut seen = BTreeSet::new();
        for operation in 0.. {
            for is_done in [false, true] {
                real.files().write_atomic(&path, b"the old").unwrap();
                let world = Faulty::new(&real, Some(Cut { operation, is_done }));
                let written = world.files().write_atomic(&path, b"the new one");
                let found = real.files().read(&path).unwrap();
                assert!(found == b"the old" || found == b"the new one", "{operation} {found:?}");
                assert!(written.is_err() || found == b"the new one");
                seen.insert(found);
                if !world.is_dark() {
                    assert_eq!(seen.len(), 2, "both were seen");
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
        let world = Faulty::new(&real, Some(Cut { operation: 3, is_done: true }));
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
