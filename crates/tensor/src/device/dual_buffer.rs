//! A buffer on a device with a copy in host memory.
//!
//! Blocks and optimizers use views of the device's memory; collectives, checkpoints and other code
//! of the host use slices. Either side is brought up to date when it is used, so a value that only
//! the device needs never leaves it, and code of the host needs no knowledge of devices. The memory
//! on the host is allocated at its first use, unless it was given. Without an accelerator both
//! sides are one, and nothing is copied.
#![expect(unsafe_code, reason = "a shared borrow brings the copy on the host up to date")]

use super::error::Result;
use super::view::{Buffer, Dtype, View, ViewMut};
use super::{Device, copy_rounded};
use crate::Cpu;
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, MutexGuard};

/// Host memory that a copy can be kept in.
pub trait HostCopy: DerefMut<Target = [f32]> + Send + Sync {
    /// Allocates zeros.
    fn zeros(len: usize) -> Self;
}

impl HostCopy for Vec<f32> {
    fn zeros(len: usize) -> Self {
        vec![0.0; len]
    }
}

/// Elements on a device, with a copy in host memory that is made when it is needed.
pub struct DualBuffer<H = Vec<f32>> {
    /// `None` until the first use of a copy.
    host: UnsafeCell<Option<H>>,
    accelerator: Option<DeviceSide>,
    len: usize,
}

struct DeviceSide {
    device: Arc<dyn Device>,
    buffer: UnsafeCell<Buffer>,
    current: Mutex<Current>,
    /// A rounded copy of the elements, made at its first use.
    copy: UnsafeCell<Option<Buffer>>,
    /// Whether the copy has the values of the elements.
    is_copied: Mutex<bool>,
}

/// Side that holds the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Current {
    Host,
    Device,
    Both,
}

// SAFETY: the cells are written through a shared borrow only while `current` or `is_copied` is
// locked, and only when no slice or view of the side that is written can exist: see
// `bring_to_host` and `view_with_copy`.
unsafe impl<H: Send + Sync> Sync for DualBuffer<H> {}

impl<H: HostCopy> DualBuffer<H> {
    /// Wraps host memory, without an accelerator.
    pub const fn on_host(host: H, len: usize) -> Self {
        Self { host: UnsafeCell::new(Some(host)), accelerator: None, len }
    }

    /// Zeros, where blocks compute.
    pub fn zeros(accelerator: Option<&Arc<dyn Device>>, len: usize) -> Result<Self> {
        let accelerator = DeviceSide::of(accelerator, len, Current::Device)?;
        let host = accelerator.is_none().then(|| H::zeros(len));
        Ok(Self { host: UnsafeCell::new(host), accelerator, len })
    }

    /// Zeros where blocks compute; their copy, or the values themselves, are in this memory, which
    /// holds zeros too: other values would not reach the device ([`Self::of`]).
    pub fn zeros_in(accelerator: Option<&Arc<dyn Device>>, host: H) -> Result<Self> {
        let len = host.len();
        debug_assert!(accelerator.is_none() || host.iter().all(|x| x.to_bits() == 0), "zeros");
        let accelerator = DeviceSide::of(accelerator, len, Current::Both)?;
        Ok(Self { host: UnsafeCell::new(Some(host)), accelerator, len })
    }

    /// These values, which are copied to where blocks compute at their first use there.
    pub fn of(accelerator: Option<&Arc<dyn Device>>, host: H) -> Result<Self> {
        let len = host.len();
        let accelerator = DeviceSide::of(accelerator, len, Current::Host)?;
        Ok(Self { host: UnsafeCell::new(Some(host)), accelerator, len })
    }

    /// Number of elements.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Device whose operations take the views.
    pub fn device<'a>(&'a self, cpu: &'a Cpu) -> &'a dyn Device {
        self.accelerator.as_ref().map_or(cpu, |side| &*side.device)
    }

    /// Whether the elements are on an accelerator.
    pub const fn is_on_accelerator(&self) -> bool {
        self.accelerator.is_some()
    }

    /// The elements on the device, to read.
    pub fn view(&self) -> Result<View<'_>> {
        let Some(side) = &self.accelerator else { return Ok(View::of(self)) };
        let mut current = side.lock();
        if *current == Current::Host {
            // SAFETY: while the host's side is the current one, no view exists; the lock keeps
            // others from making one, or from writing the host's side.
            let (host, buffer) = unsafe { (&*self.host.get(), &mut *side.buffer.get()) };
            let host = host.as_ref().expect("the current side exists");
            side.device.copy(View::of(host), buffer.view_mut())?;
            *current = Current::Both;
        }
        // SAFETY: the device's side is written through `&mut self` or while it is not current.
        Ok(unsafe { &*side.buffer.get() }.view())
    }

    /// The elements on the device, to read, with a copy that is rounded to a type, where they are
    /// on an accelerator. The copy is made when the elements have changed.
    pub fn view_with_copy(&self, dtype: Dtype) -> Result<View<'_>> {
        let view = self.view()?;
        let Some(side) = &self.accelerator else { return Ok(view) };
        let mut is_copied = side.is_copied.lock().expect("no owner of the lock panics");
        if !*is_copied {
            // SAFETY: the copy became outdated through `&mut self`, so no view of it exists, and
            // the lock keeps others from making one.
            let copy = unsafe { &mut *side.copy.get() };
            let copy = match copy {
                Some(copy) => copy,
                None => copy.insert(side.device.allocate(dtype, self.len)?),
            };
            side.device.convert(view, copy.view_mut(), ViewMut::of::<u64>(&mut []))?;
            *is_copied = true;
        }
        // SAFETY: the copy is written while it is outdated only.
        let copy = unsafe { &*side.copy.get() }.as_ref().expect("made above").view();
        assert_eq!(copy.dtype(), dtype, "a buffer has copies of one type");
        Ok(view.with_copy(copy))
    }

    /// The elements on the device, to write.
    pub fn view_mut(&mut self) -> Result<ViewMut<'_>> {
        self.view()?;
        let Some(side) = &mut self.accelerator else {
            return Ok(ViewMut::of(self.host.get_mut().as_mut().expect("the only side")));
        };
        side.change_to(Current::Device);
        Ok(side.buffer.get_mut().view_mut())
    }

    /// The device, and the elements on it, to write.
    pub fn on_device<'d, 'a: 'd, 'c: 'd>(
        &'a mut self,
        cpu: &'c Cpu,
    ) -> Result<(&'d dyn Device, ViewMut<'a>)> {
        self.view_mut()?;
        if let Some(DeviceSide { device, buffer, .. }) = &mut self.accelerator {
            return Ok((&**device, buffer.get_mut().view_mut()));
        }
        Ok((cpu, ViewMut::of(self.host.get_mut().as_mut().expect("the only side"))))
    }

    /// As [`Self::on_device`], with the rounded copy to write as well: the caller gives every
    /// element that it changes its rounded value there. Empty where no copy is up to date.
    pub fn on_device_with_copy<'d, 'a: 'd, 'c: 'd>(
        &'a mut self,
        cpu: &'c Cpu,
    ) -> Result<(&'d dyn Device, ViewMut<'a>, ViewMut<'a>)> {
        self.view()?;
        if let Some(side) = &mut self.accelerator {
            return Ok(side.with_copy_mut());
        }
        let host = ViewMut::of(self.host.get_mut().as_mut().expect("the only side"));
        Ok((cpu, host, ViewMut::of::<f32>(&mut [])))
    }

    /// Copies elements of another buffer to `at`, on the device.
    pub fn copy_from(&mut self, at: Range<usize>, from: &Self, range: Range<usize>) -> Result<()> {
        if from.accelerator.is_none() {
            self[at].copy_from_slice(&from[range]);
            return Ok(());
        }
        self.view()?;
        let Some(side) = &mut self.accelerator else { unreachable!("buffers of one rank") };
        let (device, to, copy) = side.with_copy_mut();
        let from = from.view()?.range(range);
        if !copy.is_empty() {
            copy_rounded(device, from, copy.range(at.clone()))?;
        }
        device.copy(from, to.range(at))
    }

    /// Makes the host's side current. A failure of the device is kept there: its next operation
    /// returns it.
    fn bring_to_host(&self) {
        let Some(side) = &self.accelerator else { return };
        let mut current = side.lock();
        if *current != Current::Device {
            return;
        }
        // SAFETY: the device's side became the current one through `&mut self`, so no slice of the
        // host's side exists, and the lock keeps others from making one.
        let host = unsafe { &mut *self.host.get() }.get_or_insert_with(|| H::zeros(self.len));
        // SAFETY: no view writes the device's side, see `view`.
        let buffer = unsafe { &*side.buffer.get() };
        if let Err(error) = side.device.copy(buffer.view(), ViewMut::of(host)) {
            side.device.keep_failure(error);
        }
        *current = Current::Both;
    }
}

impl<H: HostCopy> Deref for DualBuffer<H> {
    type Target = [f32];

    /// The elements on the host, to read.
    fn deref(&self) -> &[f32] {
        self.bring_to_host();
        // SAFETY: the host's side is current; it is written through `&mut self` only, from here on.
        unsafe { &*self.host.get() }.as_ref().expect("the current side exists")
    }
}

impl<H: HostCopy> DerefMut for DualBuffer<H> {
    /// The elements on the host, to write.
    fn deref_mut(&mut self) -> &mut [f32] {
        self.bring_to_host();
        if let Some(side) = &mut self.accelerator {
            side.change_to(Current::Host);
        }
        self.host.get_mut().as_mut().expect("the current side exists")
    }
}

impl<H: HostCopy> Default for DualBuffer<H> {
    /// An empty buffer, in place of one that is lent to a call.
    fn default() -> Self {
        Self::on_host(H::zeros(0), 0)
    }
}

impl<H> fmt::Debug for DualBuffer<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DualBuffer({})", self.len)
    }
}

impl DeviceSide {
    fn of(
        accelerator: Option<&Arc<dyn Device>>,
        len: usize,
        current: Current,
    ) -> Result<Option<Self>> {
        let Some(device) = accelerator else { return Ok(None) };
        let buffer = device.allocate(Dtype::F32, len)?;
        let (device, current) = (Arc::clone(device), Mutex::new(current));
        let (buffer, copy) = (UnsafeCell::new(buffer), UnsafeCell::new(None));
        Ok(Some(Self { device, buffer, current, copy, is_copied: Mutex::new(false) }))
    }

    /// Makes a side the only one with the values, because they are about to change.
    fn change_to(&mut self, side: Current) {
        *self.current.get_mut().expect("no owner of the lock panics") = side;
        *self.is_copied.get_mut().expect("no owner of the lock panics") = false;
    }

    /// The device, the elements to write, and their copy if it is up to date, which it then stays.
    fn with_copy_mut(&mut self) -> (&dyn Device, ViewMut<'_>, ViewMut<'_>) {
        let Self { device, buffer, current, copy, is_copied } = self;
        *current.get_mut().expect("no owner of the lock panics") = Current::Device;
        let is_copied = *is_copied.get_mut().expect("no owner of the lock panics");
        let copy = match copy.get_mut() {
            Some(copy) if is_copied => copy.view_mut(),
            _ => ViewMut::of::<f32>(&mut []),
        };
        (&**device, buffer.get_mut().view_mut(), copy)
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().expect("no owner of the lock panics")
    }
}
