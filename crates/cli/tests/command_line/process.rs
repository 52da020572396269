//! Runs the binary in a scratch folder.

use lockstep_platform::{Deadline, FileKind, ScratchDir, World};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Longer than a test needs its own files in shared memory.
pub(crate) const LONGER_THAN_A_TEST: Duration = Duration::from_secs(30);

/// A scratch folder that commands run in.
pub(crate) struct Folder {
    world: World,
    scratch: ScratchDir,
    /// Named files in shared memory before any command of this folder.
    shared_memory: BTreeSet<PathBuf>,
}

fn shared_memory(world: &World) -> impl Iterator<Item = PathBuf> {
    world.files().list(Path::new("/dev/shm")).unwrap_or_default().into_iter()
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Whether the long suites are requested: `LOCKSTEP_SOAK=1`, as `cargo xtask soak` sets it.
pub(crate) fn soak() -> bool {
    is_switched_on("LOCKSTEP_SOAK")
}

/// Whether a variable of the environment is 1.
pub(crate) fn is_switched_on(variable: &str) -> bool {
    lockstep_platform::real().host().env(variable).is_some_and(|value| value == "1")
}

impl Folder {
    pub(crate) fn new() -> Self {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "cli").expect("a scratch folder");
        let shared_memory = shared_memory(&world).collect();
        Self { world, scratch, shared_memory }
    }

    /// Files with our name in shared memory that were not there when this folder was created, and
    /// that stay for this time: other tests of the machine create some that they remove.
    pub(crate) fn left_in_shared_memory(&self, stay: Duration) -> BTreeSet<PathBuf> {
        let is_ours = |path: &PathBuf| path.to_string_lossy().contains("lockstep");
        let is_new = |path: &PathBuf| !self.shared_memory.contains(path);
        let found = || shared_memory(&self.world).filter(is_ours).filter(is_new).collect();
        let mut left: BTreeSet<PathBuf> = found();
        let deadline = Deadline::after(self.world.clock(), stay);
        while !left.is_empty() && !deadline.has_passed(self.world.clock()) {
            self.world.clock().sleep(Duration::from_millis(20));
            left = &left & &found();
        }
        left
    }

    pub(crate) fn path(&self) -> &Path {
        self.scratch.path()
    }

    /// The command in this folder, not started yet.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.program(env!("CARGO_BIN_EXE_lockstep"), arguments)
    }

    /// A script of the shell in this folder, not started yet.
    pub(crate) fn shell(&self, script: &str) -> Command {
        self.program("/bin/sh", &["-c", script])
    }

    fn program(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.path()).stdin(Stdio::null());
        // Recorded bits are those of the CPU, also on a machine with a GPU.
        command.env("CUDA_VISIBLE_DEVICES", "");
        command
    }

    /// Runs `lockstep` with these arguments.
    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        Finished::new(self.command(arguments).output().expect("the binary starts"))
    }

    /// Runs `lockstep`, which must succeed.
    pub(crate) fn succeed(&self, arguments: &[&str]) -> Finished {
        let finished = self.run(arguments);
        assert_eq!(finished.code, Some(0), "{arguments:?}: {}", finished.stderr);
        finished
    }

    /// Runs `lockstep`, which must succeed and print one JSON value.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let stdout = self.succeed(arguments).stdout;
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path().join(name);
        let parent = path.parent().expect("it is in the folder");
        self.world.files().create_dir_all(parent).expect("folders can be made");
        self.world.files().write_atomic(&path, bytes).expect("files can be written");
    }

    /// Adds to the end of a file.
    pub(crate) fn append(&self, name: &str, bytes: &[u8]) {
        let mut file = self.world.files().append(&self.path().join(name)).expect("it is there");
        file.write_all(bytes).expect("files can be written");
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        self.world.files().read(&self.path().join(name)).expect("the file is there")
    }

    /// All paths in the folder: files with their bytes, folders with none.
    pub(crate) fn content(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut content = BTreeMap::new();
        let mut open = vec![self.path().to_owned()];
        while let Some(folder) = open.pop() {
            for path in self.world.files().list(&folder).expect("folders can be listed") {
                let mut bytes = Vec::new();
                match self.world.files().metadata(&path) {
                    Some(FileKind::Directory) => open.push(path.clone()),
                    _ => bytes = self.world.files().read(&path).expect("files can be read"),
                }
                content.insert(path, bytes);
            }
        }
        content
    }
}

impl Finished {
    pub(crate) fn new(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("we print UTF-8");
        let Output { status, stdout, stderr } = output;
        Self { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
    }
}

/// The last error line; a command that continues may follow it.
#[track_caller]
pub(crate) fn last_error(stderr: &str) -> &str {
    let mut errors = stderr.lines().filter(|line| line.starts_with("error: "));
    errors.next_back().unwrap_or_else(|| panic!("no error line: {stderr}"))
}

/// Asserts that a JSON object has all of these keys, separated by spaces.
#[track_caller]
pub(crate) fn assert_keys(object: &Value, keys: &str) {
    let object = object.as_object().expect("an object");
    let missing: Vec<_> =
        keys.split_whitespace().filter(|key| !object.contains_key(*key)).collect();
    assert!(missing.is_empty(), "{missing:?} missing: {object:?}");
}
