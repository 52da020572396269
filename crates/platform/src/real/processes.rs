//! Processes of the operating system.
#![expect(unsafe_code, reason = "signal handlers and their disposition")]
#![expect(clippy::disallowed_methods, reason = "the system's table of processes is a folder")]

use std::ffi::c_int;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal,
};

use crate::processes::EXIT_ON_INTERRUPT;
use crate::{
    Exit, Interrupts, Process, ProcessCommand, ProcessError, ProcessOutput, ProcessState,
    ProcessWatch, Processes,
};

const SIGINT: c_int = 2;
const SIGUSR1: c_int = 10;
const SIGTERM: c_int = 15;
const DEFAULT: usize = 0;
const IGNORE: usize = 1;

unsafe extern "C" {
    fn signal(number: c_int, handler: usize) -> usize;
    fn raise(number: c_int) -> c_int;
    fn _exit(code: c_int) -> !;
}

// Signals are sent to the whole process, so their flags are static.
static TERMINATION_REQUESTED: AtomicBool = AtomicBool::new(false);
static RETRY_REQUESTED: AtomicBool = AtomicBool::new(false);

extern "C" fn record_termination_request(_: c_int) {
    TERMINATION_REQUESTED.store(true, Ordering::Relaxed);
}

extern "C" fn record_retry_request(_: c_int) {
    RETRY_REQUESTED.store(true, Ordering::Relaxed);
}

/// Time of the first deferred SIGINT in milliseconds of the monotonic clock; 0 before it.
static INTERRUPTED_AT_MS: AtomicU64 = AtomicU64::new(0);
/// Time after the first SIGINT during which another one is a repetition.
static REPEAT_MS: AtomicU64 = AtomicU64::new(0);
/// Line that the handler of SIGINT prints; set before the handler is installed.
static INTERRUPT_LINE: AtomicPtr<&'static str> = AtomicPtr::new(std::ptr::null_mut());

/// Records the first SIGINT and ends the process at the second.
extern "C" fn defer_interrupt(_: c_int) {
    let now = monotonic_ms();
    match INTERRUPTED_AT_MS.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => print_interrupt_line(),
        Err(first) if now.saturating_sub(first) < REPEAT_MS.load(Ordering::Relaxed) => {}
        // SAFETY: `_exit` is async-signal-safe and does not return.
        Err(_) => unsafe { _exit(c_int::from(EXIT_ON_INTERRUPT)) },
    }
}

/// Prints a line and ends the process by SIGINT.
extern "C" fn explain_interrupt(_: c_int) {
    print_interrupt_line();
    // SAFETY: both calls are async-signal-safe. The signal is blocked until this handler returns,
    // and then ends the process.
    unsafe {
        signal(SIGINT, DEFAULT);
        raise(SIGINT);
    }
}

/// Milliseconds of the monotonic clock, at least 1. Safe in a signal handler.
fn monotonic_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let ms = now.tv_sec * 1000 + now.tv_nsec / 1_000_000;
    u64::try_from(ms).unwrap_or(1).max(1)
}

/// Writes the line to standard error. Safe in a signal handler: one system call without `errno`.
fn print_interrupt_line() {
    let line = INTERRUPT_LINE.load(Ordering::Acquire);
    // SAFETY: the pointer is null or of a leaked `&'static str`; descriptor 2 is open or the write
    // fails, which leaves only the exit code.
    unsafe {
        if let Some(line) = line.as_ref() {
            let _ = rustix::io::write(BorrowedFd::borrow_raw(2), line.as_bytes());
        }
    }
}

/// Sets the line of the handlers. A line that was set before stays allocated, since a handler may
/// be reading it.
fn set_interrupt_line(line: &'static str) {
    INTERRUPT_LINE.store(Box::leak(Box::new(line)), Ordering::Release);
}

pub(crate) struct RealProcesses;

impl Processes for RealProcesses {
    fn spawn(&self, command: &ProcessCommand) -> Result<Box<dyn Process>, ProcessError> {
        let program = command.program.display().to_string();
        let variables = command.environment.iter().map(|(name, value)| (name, value));
        let stdout = if command.shares_stdout { Stdio::inherit() } else { Stdio::null() };
        let child = Command::new(&command.program)
            .args(&command.arguments)
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| ProcessError::new("start", &program, &error))?;
        Ok(Box::new(RealProcess { child, program }))
    }

    fn own_program(&self) -> Result<PathBuf, ProcessError> {
        std::env::current_exe()
            .map_err(|error| ProcessError::new("find", "the program that runs here", &error))
    }

    fn own_id(&self) -> u32 {
        std::process::id()
    }

    fn end_with(&self, owner: u32) -> bool {
        // Without this signal, the parent must end its children itself.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        // The parent may have ended before the call above; then the parent is another process.
        getppid().map(Pid::as_raw_pid) == i32::try_from(owner).ok()
    }

    fn watch(&self, id: u32) -> Option<Box<dyn ProcessWatch>> {
        let pid = Pid::from_raw(i32::try_from(id).ok()?)?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Box::new(RealWatch { handle }))
    }

    fn kill(&self, id: u32) -> bool {
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| rustix::process::kill_process(pid, Signal::KILL).is_ok())
    }

    fn state(&self, id: u32) -> Option<ProcessState> {
        let line = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name may contain parentheses, so the last one counts.
        let (_, behind_name) = line.rsplit_once(')')?;
        Some(match behind_name.trim_start().chars().next()? {
            'T' | 't' => ProcessState::Stopped,
            'Z' | 'X' | 'x' => ProcessState::Ended,
            _ => ProcessState::Alive,
        })
    }

    fn defer_termination(&self, is_deferred: bool) {
        let handler = record_termination_request as extern "C" fn(c_int) as usize;
        let disposition = if is_deferred { handler } else { DEFAULT };
        // SAFETY: the C library is there, because the standard library stands on it; the number is
        // a signal's, and the handler only stores into an atomic, which a handler may do.
        unsafe { signal(SIGTERM, disposition) };
    }

    fn is_termination_requested(&self) -> bool {
        TERMINATION_REQUESTED.load(Ordering::Relaxed)
    }

    fn accept_retry_requests(&self) {
        // SAFETY: as above; a system that calls this number something else never sends it.
        unsafe { signal(SIGUSR1, record_retry_request as extern "C" fn(c_int) as usize) };
    }

    fn take_retry_request(&self) -> bool {
        RETRY_REQUESTED.swap(false, Ordering::Relaxed)
    }

    fn handle_interrupts(&self, effect: Interrupts) {
        let disposition = match effect {
            Interrupts::End => DEFAULT,
            Interrupts::Ignore => IGNORE,
            Interrupts::Explain(line) => {
                set_interrupt_line(line);
                explain_interrupt as extern "C" fn(c_int) as usize
            }
            Interrupts::Defer { line, repeat } => {
                set_interrupt_line(line);
                let repeat = u64::try_from(repeat.as_millis()).unwrap_or(u64::MAX);
                REPEAT_MS.store(repeat, Ordering::Relaxed);
                defer_interrupt as extern "C" fn(c_int) as usize
            }
        };
        // SAFETY: the C library is there, because the standard library stands on it; the number is
        // a signal's, and the handlers make only async-signal-safe calls.
        unsafe { signal(SIGINT, disposition) };
    }

    fn is_interrupt_requested(&self) -> bool {
        INTERRUPTED_AT_MS.load(Ordering::Relaxed) > 0
    }

    fn take_interrupt(&self) -> bool {
        INTERRUPTED_AT_MS.swap(0, Ordering::Relaxed) > 0
    }
}

struct RealWatch {
    handle: OwnedFd,
}

impl ProcessWatch for RealWatch {
    fn has_ended(&self) -> bool {
        // The handle of an ended process is readable.
        let mut polled = [PollFd::new(&self.handle, PollFlags::IN)];
        matches!(poll(&mut polled, Some(&Timespec::default())), Ok(1..))
    }
}

struct RealProcess {
    child: Child,
    program: String,
}

impl Process for RealProcess {
    fn id(&self) -> u32 {
        self.child.id()
    }

    fn take_stderr(&mut self) -> Option<Box<dyn ProcessOutput>> {
        let pipe = self.child.stderr.take()?;
        Some(Box::new(RealOutput { pipe }))
    }

    fn try_wait(&mut self) -> Result<Option<Exit>, ProcessError> {
        let status = self.child.try_wait();
        let status = status.map_err(|e| ProcessError::new("wait for", &self.program, &e))?;
        Ok(status.map(|status| match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(number)) => Exit::Signal(number),
            (None, None) => unreachable!("a process that ended has a code or a signal"),
        }))
    }

    fn kill(&mut self) {
        // It fails only for a process that was reaped.
        let _ = self.child.kill();
    }

    fn terminate(&mut self) {
        // An unreaped child keeps its id, so the signal cannot reach another process.
        if let (Ok(None), Some(pid)) =
            (self.child.try_wait(), Pid::from_raw(self.child.id().cast_signed()))
        {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for RealProcess {
    fn drop(&mut self) {
        self.kill();
        // Reaps the process.
        let _ = self.child.wait();
    }
}

struct RealOutput {
    pipe: ChildStderr,
}

impl ProcessOutput for RealOutput {
    fn read(&mut self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let limit = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut polled = [PollFd::new(&self.pipe, PollFlags::IN)];
        match poll(&mut polled, Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => Err(io::ErrorKind::TimedOut.into()),
            // A closed pipe is ready too; reading it gives 0 bytes.
            Ok(_) => self.pipe.read(buffer),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real;

    const LIMIT: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Box<dyn Process> {
        let arguments = ["-c", script].map(Into::into).to_vec();
        let environment = vec![("LOCKSTEP_WORD".to_owned(), "hello".to_owned())];
        let program = PathBuf::from("/bin/sh");
        let command = ProcessCommand { program, arguments, environment, shares_stdout: false };
        RealProcesses.spawn(&command).expect("there is a shell")
    }

    fn wait(process: &mut dyn Process) -> Exit {
        let world = real();
        let deadline = crate::Deadline::after(world.clock(), LIMIT);
        loop {
            if let Some(exit) = process.try_wait().expect("it was started here") {
                return exit;
            }
            assert!(!deadline.has_passed(world.clock()), "it does not end");
            world.clock().sleep(Duration::from_millis(2));
        }
    }

    fn read_all(process: &mut dyn Process) -> String {
        let mut output = process.take_stderr().expect("it was not taken");
        let mut text = Vec::new();
        let mut buffer = [0; 100];
        loop {
            match output.read(&mut buffer, LIMIT).expect("it writes or ends") {
                0 => return String::from_utf8(text).expect("text"),
                count => text.extend_from_slice(&buffer[..count]),
            }
        }
    }

    #[test]
    fn a_process_gets_its_variables_and_its_output_is_read() {
        let mut process = shell("echo $LOCKSTEP_WORD >&2; echo unseen; exit 7");
        assert_eq!(read_all(&mut *process), "hello\n");
        assert!(process.take_stderr().is_none(), "it is given once");
        assert_eq!(wait(&mut *process), Exit::Code(7));
        assert_eq!(wait(&mut *process), Exit::Code(7), "the end stays known");
    }

    #[test]
    fn reading_from_a_silent_process_times_out() {
        let mut process = shell("exec sleep 60");
        let mut output = process.take_stderr().expect("it was not taken");
        let error = output.read(&mut [0; 8], Duration::from_millis(1)).expect_err("it is silent");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(process.try_wait(), Ok(None));
        process.kill();
        assert_eq!(wait(&mut *process), Exit::Signal(9));
    }

    #[test]
    fn a_process_whose_value_goes_is_gone() {
        let process = shell("exec sleep 60");
        let pid = Pid::from_raw(process.id().cast_signed()).expect("a number");
        assert_eq!(rustix::process::test_kill_process(pid), Ok(()));
        drop(process);
        assert_eq!(rustix::process::test_kill_process(pid), Err(Errno::SRCH));
    }

    #[test]
    fn any_process_can_be_watched_and_queried() {
        let mut process = shell("exec sleep 60");
        let watch = RealProcesses.watch(process.id()).expect("it runs");
        assert!(!watch.has_ended());
        assert_eq!(RealProcesses.state(process.id()), Some(ProcessState::Alive));
        process.kill();
        assert_eq!(wait(&mut *process), Exit::Signal(9));
        assert!(watch.has_ended());
        assert_eq!(RealProcesses.state(process.id()), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let program = PathBuf::from("/no/such/program");
        let (arguments, environment) = (Vec::new(), Vec::new());
        let command = ProcessCommand { program, arguments, environment, shares_stdout: true };
        let error = RealProcesses.spawn(&command).err().expect("there is none");
        assert_eq!(error.to_string(), "cannot start /no/such/program: no such file");
    }

    #[test]
    fn this_process_knows_itself() {
        let name = RealProcesses.own_program().expect("it runs");
        assert!(name.is_absolute(), "{name:?}");
        assert_eq!(RealProcesses.own_id(), std::process::id());
    }
}
