//! The bridge to the MPI library: found in the cache, or compiled by the library's compiler.

use crate::MpiError;
use lockstep_platform::{Exit, ProcessCommand, World};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Source of the bridge.
const SOURCE: &str = include_str!("shim.c");

/// Environment variable with another compiler than `mpicc`.
const COMPILER: &str = "MPICC";

/// Longest time in which a compiler must print something or end.
const COMPILER_TIMEOUT: Duration = Duration::from_mins(2);

/// Most bytes of a compiler's messages that are kept.
const MAX_LOG_BYTES: usize = 4096;

/// Path of the compiled bridge. Processes that compile it at once do no harm: each renames its own
/// file.
pub fn find_or_compile(world: &World) -> Result<PathBuf, MpiError> {
    let compiler = world.host().env(COMPILER).unwrap_or_else(|| "mpicc".to_owned());
    let folder = cache_folder(world);
    let failed = |reason: &dyn std::fmt::Display| MpiError::Cache {
        folder: folder.clone(),
        reason: reason.to_string(),
    };
    world.files().create_dir_all(&folder).map_err(|error| failed(&error))?;
    let own = world.processes().own_id();
    let shown = folder.join(format!("show-{own}.txt"));
    let command = command_line(world, &compiler, &shown)?;
    let key = fnv1a(&[SOURCE.as_bytes(), compiler.as_bytes(), &command]);
    let path = folder.join(format!("shim-{key:016x}.so"));
    if world.files().metadata(&path).is_some() {
        return Ok(path);
    }
    let [source, compiled] = ["c", "so"].map(|kind| folder.join(format!("shim-{own}.{kind}")));
    world.files().write_atomic(&source, SOURCE.as_bytes()).map_err(|error| failed(&error))?;
    let outcome = compile(world, &compiler, &source, &compiled);
    let _ = world.files().remove_file(&source);
    outcome?;
    world.files().rename(&compiled, &path).map_err(|error| failed(&error))?;
    Ok(path)
}

/// Folder of compiled bridges, in the user's cache.
fn cache_folder(world: &World) -> PathBuf {
    let env = |name: &str| world.host().env(name).filter(|value| !value.is_empty());
    let home = env("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = env("XDG_CACHE_HOME").map(PathBuf::from).or(home);
    cache.unwrap_or_else(|| world.host().runtime_dir()).join("lockstep/mpi")
}

/// Command of the compiler, which names the library and its version: another one needs another
/// bridge.
fn command_line(world: &World, compiler: &str, shown: &Path) -> Result<Vec<u8>, MpiError> {
    // Both families of wrappers have `-show`. One without it is known by its name alone.
    let script = "\"$0\" -show > \"$1\" || command -v \"$0\" > \"$1\"";
    let arguments = ["-c", script, compiler].map(Into::into).into_iter();
    let arguments = arguments.chain([shown.as_os_str().to_owned()]).collect();
    let (exit, log) =
        run(world, "sh", arguments).map_err(|reason| no_compiler(compiler, reason))?;
    let text = world.files().read(shown).unwrap_or_default();
    let _ = world.files().remove_file(shown);
    if exit != Exit::Code(0) || text.is_empty() {
        return Err(no_compiler(compiler, log));
    }
    Ok(text)
}

fn no_compiler(compiler: &str, reason: String) -> MpiError {
    MpiError::NoCompiler { compiler: compiler.to_owned(), reason }
}

fn compile(world: &World, compiler: &str, source: &Path, compiled: &Path) -> Result<(), MpiError> {
    let arguments = ["-shared", "-fPIC", "-O2", "-o"].map(Into::into).into_iter();
    let arguments = arguments.chain([compiled, source].map(|path| path.as_os_str().to_owned()));
    let found = run(world, compiler, arguments.collect());
    let (exit, log) = found.map_err(|reason| no_compiler(compiler, reason))?;
    if exit == Exit::Code(0) {
        return Ok(());
    }
    Err(MpiError::Compile { compiler: compiler.to_owned(), log: format!("{log} ({exit})") })
}

/// Runs a program to its end; returns its exit and what it wrote to standard error, in one line.
fn run(
    world: &World,
    program: &str,
    arguments: Vec<std::ffi::OsString>,
) -> Result<(Exit, String), String> {
    let program = PathBuf::from(program);
    let environment = Vec::new();
    let command = ProcessCommand { program, arguments, environment, shares_stdout: false };
    let mut process = world.processes().spawn(&command).map_err(|error| error.to_string())?;
    let mut log = Vec::new();
    if let Some(mut output) = process.take_stderr() {
        let mut buffer = [0; 1024];
        loop {
            match output.read(&mut buffer, COMPILER_TIMEOUT) {
                Ok(0) => break,
                Ok(len) if log.len() < MAX_LOG_BYTES => log.extend_from_slice(&buffer[..len]),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
    // All ends of the pipe are closed, so the process ends now.
    let until = lockstep_platform::Deadline::after(world.clock(), COMPILER_TIMEOUT);
    loop {
        if let Some(exit) = process.try_wait().map_err(|error| error.to_string())? {
            let text = String::from_utf8_lossy(&log);
            return Ok((exit, text.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
        if until.has_passed(world.clock()) {
            return Err("it did not end".to_owned());
        }
        world.clock().sleep(Duration::from_millis(1));
    }
}

/// FNV-1a over some texts and their lengths.
fn fnv1a(texts: &[&[u8]]) -> u64 {
    let lengths = texts.iter().map(|text| text.len() as u64);
    let bytes = texts.iter().flat_map(|text| text.iter().map(|byte| u64::from(*byte)));
    lengths
        .chain(bytes)
        .fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3))
}
