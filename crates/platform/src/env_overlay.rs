//! A platform with environment variables that override those of the process.
//!
//! Launchers pass the place of a rank under names of their own. Whoever translates them, or has
//! them from arguments, overlays the common names, and every later reader has one set to read.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::{Clock, Entropy, Files, Host, Net, Platform, Processes, Shared, Threads, World};

/// A platform in which these variables have these values. Child processes inherit the environment
/// of the process, without them.
pub fn with_env(world: &World, variables: Vec<(String, String)>) -> World {
    Arc::new(EnvOverlay { inner: Arc::clone(world), variables })
}

struct EnvOverlay {
    inner: World,
    variables: Vec<(String, String)>,
}

impl Platform for EnvOverlay {
    fn clock(&self) -> &dyn Clock {
        self.inner.clock()
    }

    fn files(&self) -> &dyn Files {
        self.inner.files()
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
        self
    }
}

impl Host for EnvOverlay {
    fn peak_rss_bytes(&self) -> u64 {
        self.inner.host().peak_rss_bytes()
    }

    fn current_rss_bytes(&self) -> u64 {
        self.inner.host().current_rss_bytes()
    }

    fn proportional_rss_bytes(&self) -> u64 {
        self.inner.host().proportional_rss_bytes()
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.inner.host().cpu_time()
    }

    fn clock_hertz(&self) -> Option<f64> {
        self.inner.host().clock_hertz()
    }

    fn throttle_count(&self) -> Option<u64> {
        self.inner.host().throttle_count()
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.host().memory_bytes()
    }

    fn name(&self) -> String {
        self.inner.host().name()
    }

    fn env(&self, name: &str) -> Option<String> {
        let own = self.variables.iter().find(|(key, _)| key == name);
        own.map(|(_, value)| value.clone()).or_else(|| self.inner.host().env(name))
    }

    fn terminal_columns(&self) -> Option<usize> {
        self.inner.host().terminal_columns()
    }

    fn temp_dir(&self) -> PathBuf {
        self.inner.host().temp_dir()
    }

    fn runtime_dir(&self) -> PathBuf {
        self.inner.host().runtime_dir()
    }
}
