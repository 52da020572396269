//! Conformance checks of threads, signals and queues.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Row;
use crate::{JoinHandle, Queue, RecvError, SendError, ThreadError, World};

pub(super) const CHECKS: &[Row] = &[
    ("a joined thread has done its work", join_waits_for_the_work),
    ("a panic in a thread is an error of join", panic_becomes_an_error),
    ("the wait for a thread has a limit", finished_within_has_a_limit),
    ("at least one thread can run", at_least_one_thread),
    ("a pinned thread still runs", pinned_thread_runs),
    ("a wait on a quiet signal ends with its time limit", quiet_signal_times_out),
    ("a notification before the wait is not lost", early_notification_is_not_lost),
    ("a notification wakes every waiter", notification_wakes_all),
    ("a queue passes values between threads in order", queue_passes_values),
    ("closing a queue wakes both ends", close_wakes_both_ends),
];

/// Timeout far above any expected duration.
const LIMIT: Duration = Duration::from_secs(20);

fn spawn(world: &World, name: &str, body: impl FnOnce() + Send + 'static) -> Box<dyn JoinHandle> {
    world.threads().spawn(name, Box::new(body)).expect("a few threads can be had")
}

fn join_waits_for_the_work(world: &World, _dir: &Path) {
    let total = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (1..=4)
        .map(|share| {
            let total = Arc::clone(&total);
            spawn(world, "adder", move || {
                total.fetch_add(share, Ordering::Relaxed);
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("it does not panic");
    }
    assert_eq!(total.load(Ordering::Relaxed), 10);
}

fn panic_becomes_an_error(world: &World, _dir: &Path) {
    // Unwind without the panic hook, which would print a trace for an expected panic.
    let thread = spawn(world, "doomed", || std::panic::resume_unwind(Box::new("on purpose")));
    assert!(thread.finished_within(LIMIT));
    let error = thread.join().expect_err("the thread panicked");
    let (name, message) = ("doomed".to_owned(), "on purpose".to_owned());
    assert_eq!(error, ThreadError::Panicked { name, message });
}

fn finished_within_has_a_limit(world: &World, _dir: &Path) {
    let signal = world.threads().signal();
    let stop = Arc::clone(&signal);
    let thread = spawn(world, "waiter", move || {
        stop.wait(0, LIMIT);
    });
    assert!(!thread.finished_within(Duration::from_millis(2)));
    signal.notify_all();
    assert!(thread.finished_within(LIMIT));
    thread.join().expect("it does not panic");
}

fn at_least_one_thread(world: &World, _dir: &Path) {
    assert!(world.threads().available() >= 1);
}

fn pinned_thread_runs(world: &World, _dir: &Path) {
    let (copy, done) = (Arc::clone(world), Arc::new(AtomicU64::new(0)));
    let epoch = Arc::clone(&done);
    let body = move || {
        // Where pinning is not possible it is refused, without other effects.
        let _ = copy.threads().pin_to_core(1_000_003);
        epoch.store(1, Ordering::Relaxed);
    };
    spawn(world, "stayer", body).join().expect("no panic");
    assert_eq!(done.load(Ordering::Relaxed), 1);
}

fn quiet_signal_times_out(world: &World, _dir: &Path) {
    let signal = world.threads().signal();
    let limit = Duration::from_millis(3);
    let start = world.clock().now();
    assert!(!signal.wait(signal.epoch(), limit));
    let waited = world.clock().since(start);
    assert!(waited >= limit, "waited {waited:?} instead of {limit:?}");
}

fn early_notification_is_not_lost(world: &World, _dir: &Path) {
    let signal = world.threads().signal();
    let epoch = signal.epoch();
    signal.notify_all();
    assert!(signal.wait(epoch, Duration::ZERO));
    assert_ne!(signal.epoch(), epoch);
    assert!(!signal.wait(signal.epoch(), Duration::ZERO));
}

fn notification_wakes_all(world: &World, _dir: &Path) {
    let signal = world.threads().signal();
    let epoch = signal.epoch();
    let woken = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (signal, woken) = (Arc::clone(&signal), Arc::clone(&woken));
            spawn(world, "waiter", move || {
                woken.fetch_add(u64::from(signal.wait(epoch, LIMIT)), Ordering::Relaxed);
            })
        })
        .collect();
    signal.notify_all();
    for thread in threads {
        thread.join().expect("it does not panic");
    }
    assert_eq!(woken.load(Ordering::Relaxed), 3);
}

fn queue_passes_values(world: &World, _dir: &Path) {
    let queue = Arc::new(Queue::new(world, 2));
    let sender = Arc::clone(&queue);
    let thread = spawn(world, "sender", move || {
        for value in 0..50 {
            sender.send(value, LIMIT).expect("the receiver keeps up");
        }
        sender.close();
    });
    for expected in 0..50 {
        assert_eq!(queue.recv(LIMIT), Ok(expected));
        assert!(queue.len() <= 2);
    }
    assert_eq!(queue.recv(LIMIT), Err(RecvError::Closed));
    thread.join().expect("it does not panic");
}

fn close_wakes_both_ends(world: &World, _dir: &Path) {
    let empty = Arc::new(Queue::<u8>::new(world, 1));
    let full = Arc::new(Queue::<u8>::new(world, 1));
    full.send(0, LIMIT).expect("there is room for one");
    let (receiving, sending) = (Arc::clone(&empty), Arc::clone(&full));
    let receiver = spawn(world, "receiver", move || {
        assert_eq!(receiving.recv(LIMIT), Err(RecvError::Closed));
    });
    let sender = spawn(world, "sender", move || {
        assert_eq!(sending.send(1, LIMIT), Err(SendError::Closed(1)));
    });
    empty.close();
    full.close();
    receiver.join().expect("closing woke the receiver");
    sender.join().expect("closing woke the sender");
}
