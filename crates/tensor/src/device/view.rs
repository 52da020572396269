//! Memory of a device: owned buffers, and borrowed views of them with an element type.
//!
//! A view is a pointer, a length and a type. The pointer belongs to the device that allocated the
//! memory; only views of host memory can be read as slices. Borrowing follows the rules of slices:
//! many [`View`]s, or one [`ViewMut`], of the same elements.
#![expect(unsafe_code, reason = "views of host memory become slices")]

use super::error::{DeviceError, Result};
use crate::gemm::Precision;
use half::{bf16, f16};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// Type of the elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dtype {
    /// Four-byte floats.
    F32,
    /// Upper halves of four-byte floats.
    Bf16,
    /// IEEE half precision.
    F16,
    /// Eight-byte floats: sums.
    F64,
    /// Token ids.
    U32,
    /// Counts.
    U64,
}

impl Dtype {
    /// Type of the operands of products in a precision, as they are in memory.
    pub const fn of_operands(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::Bf16 | Precision::Fp8 => Self::Bf16,
            Precision::F16 => Self::F16,
        }
    }

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 | Self::U32 => 4,
            Self::F64 | Self::U64 => 8,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F64 => "f64",
            Self::U32 => "u32",
            Self::U64 => "u64",
        })
    }
}

/// A Rust type that elements of a buffer can have; every bit pattern is a value.
pub trait Element: Copy + Send + Sync + sealed::Sealed + 'static {
    /// The type as a value.
    const DTYPE: Dtype;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}
elements!(f32 => F32, bf16 => Bf16, f16 => F16, f64 => F64, u32 => U32, u64 => U64);

/// Memory that a pointer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Memory of the process.
    Host,
    /// Memory of the process that a device transfers beside its work, and nothing else uses.
    Pinned,
    /// Memory of a CUDA device.
    Cuda(usize),
}

/// Elements to read. Parameters may come with a copy that is rounded to the type of products, which
/// then need not round them.
#[derive(Clone, Copy)]
pub struct View<'a> {
    address: *const u8,
    len: usize,
    dtype: Dtype,
    place: Place,
    /// First element and type of the rounded copy.
    copy: Option<(*const u8, Dtype)>,
    lifetime: PhantomData<&'a [u64]>,
}

/// Elements to write.
pub struct ViewMut<'a> {
    address: *mut u8,
    len: usize,
    dtype: Dtype,
    place: Place,
    lifetime: PhantomData<&'a mut [u64]>,
}

// SAFETY: a view is a borrow of plain elements, which may be read from any thread.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}
// SAFETY: a view to write is an exclusive borrow of plain elements.
unsafe impl Send for ViewMut<'_> {}
// SAFETY: a shared borrow of it only reads its fields.
unsafe impl Sync for ViewMut<'_> {}

impl<'a> View<'a> {
    /// Views a slice of host memory.
    pub fn of<T: Element>(data: &'a [T]) -> Self {
        let (address, len) = (data.as_ptr().cast(), data.len());
        let (dtype, place) = (T::DTYPE, Place::Host);
        Self { address, len, dtype, place, copy: None, lifetime: PhantomData }
    }

    /// Adds a copy of the elements, rounded to another type.
    ///
    /// # Panics
    /// When it has another length or is in other memory.
    #[must_use]
    pub fn with_copy(self, copy: Self) -> Self {
        assert_eq!(copy.len, self.len, "a copy of all elements");
        assert_eq!(copy.place, self.place, "a copy in the same memory");
        Self { copy: Some((copy.address, copy.dtype)), ..self }
    }

    /// The copy in a type, if there is one.
    pub fn copy_in(&self, dtype: Dtype) -> Option<Self> {
        let (address, _) = self.copy.filter(|(_, own)| *own == dtype)?;
        Some(Self { address, dtype, copy: None, ..*self })
    }

    /// Number of elements.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Type of the elements.
    pub const fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Size in bytes.
    pub const fn num_bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    pub(crate) const fn address(&self) -> *const u8 {
        self.address
    }

    pub(crate) const fn place(&self) -> Place {
        self.place
    }

    /// The elements at `range`.
    ///
    /// # Panics
    /// When the range reaches beyond the view.
    pub fn range(self, range: Range<usize>) -> Self {
        check_range(&range, self.len);
        let at = |(address, dtype): (*const u8, Dtype)| {
            (address.wrapping_add(range.start * dtype.size()), dtype)
        };
        let (address, _) = at((self.address, self.dtype));
        Self { address, len: range.len(), copy: self.copy.map(at), ..self }
    }

    /// The first `mid` elements, and the rest.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        (self.range(0..mid), self.range(mid..self.len))
    }

    /// Reads the bytes as elements of another type.
    ///
    /// # Panics
    /// When the bytes are no whole elements of that type, or not aligned for it.
    pub fn cast(self, dtype: Dtype) -> Self {
        let len = cast_len(self.address, self.num_bytes(), dtype);
        Self { len, dtype, copy: None, ..self }
    }

    /// The elements as a slice, if they are in host memory and of that type.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T]> {
        check_slice::<T>(self.dtype, self.place)?;
        // SAFETY: the view borrows `len` elements of this type in host memory for `'a`.
        Ok(unsafe { std::slice::from_raw_parts(self.address.cast(), self.len) })
    }
}

impl<'a> ViewMut<'a> {
    /// Views a slice of host memory.
    pub fn of<T: Element>(data: &'a mut [T]) -> Self {
        let (len, address) = (data.len(), data.as_mut_ptr().cast());
        Self { address, len, dtype: T::DTYPE, place: Place::Host, lifetime: PhantomData }
    }

    /// Number of elements.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Type of the elements.
    pub const fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub(crate) const fn address(&self) -> *mut u8 {
        self.address
    }

    /// The elements, to read.
    pub fn as_view(&self) -> View<'_> {
        let Self { address, len, dtype, place, .. } = *self;
        View { address, len, dtype, place, copy: None, lifetime: PhantomData }
    }

    /// The elements, to read until the borrow ends.
    pub fn into_view(self) -> View<'a> {
        let Self { address, len, dtype, place, .. } = self;
        View { address, len, dtype, place, copy: None, lifetime: PhantomData }
    }

    /// Reborrows the view.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        let Self { address, len, dtype, place, .. } = *self;
        ViewMut { address, len, dtype, place, lifetime: PhantomData }
    }

    /// The elements at `range`.
    ///
    /// # Panics
    /// When the range reaches beyond the view.
    pub fn range(self, range: Range<usize>) -> Self {
        check_range(&range, self.len);
        let address = self.address.wrapping_add(range.start * self.dtype.size());
        Self { address, len: range.len(), ..self }
    }

    /// The first `mid` elements, and the rest.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        check_range(&(0..mid), self.len);
        let Self { address, len, dtype, place, lifetime } = self;
        let behind = address.wrapping_add(mid * dtype.size());
        let first = Self { address, len: mid, dtype, place, lifetime };
        (first, Self { address: behind, len: len - mid, dtype, place, lifetime })
    }

    /// Reads the bytes as elements of another type.
    ///
    /// # Panics
    /// When the bytes are no whole elements of that type, or not aligned for it.
    pub fn cast(self, dtype: Dtype) -> Self {
        let len = cast_len(self.address, self.len * self.dtype.size(), dtype);
        Self { len, dtype, ..self }
    }

    /// The elements as a slice, if they are in host memory and of that type.
    pub fn into_slice<T: Element>(self) -> Result<&'a mut [T]> {
        check_slice::<T>(self.dtype, self.place)?;
        // SAFETY: the view borrows `len` elements of this type in host memory for `'a`, alone.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.len) })
    }
}

/// Number of elements of another type in the bytes of a view; every bit pattern is a value.
fn cast_len(address: *const u8, bytes: usize, dtype: Dtype) -> usize {
    let size = dtype.size();
    assert!(bytes.is_multiple_of(size), "{bytes} bytes are no whole elements of {dtype}");
    assert!(bytes == 0 || address.addr().is_multiple_of(size), "memory not aligned for {dtype}");
    bytes / size
}

fn check_range(range: &Range<usize>, len: usize) {
    assert!(range.start <= range.end && range.end <= len, "{range:?} of a view of {len} elements");
}

fn check_slice<T: Element>(dtype: Dtype, place: Place) -> Result<()> {
    let reason = match (dtype == T::DTYPE, place) {
        (true, Place::Host) => return Ok(()),
        (false, Place::Host) => format!("needs {}, has {dtype}", T::DTYPE),
        (_, Place::Pinned) => "the memory is that of copies beside the work".to_owned(),
        (_, Place::Cuda(_)) => "the memory is on a CUDA device".to_owned(),
    };
    Err(DeviceError::Unsupported { operation: "host operand", reason })
}

impl<'a, T: Element> From<&'a [T]> for View<'a> {
    fn from(data: &'a [T]) -> Self {
        Self::of(data)
    }
}

impl<'a, T: Element> From<&'a Vec<T>> for View<'a> {
    fn from(data: &'a Vec<T>) -> Self {
        Self::of(data)
    }
}

impl From<&Self> for View<'_> {
    fn from(view: &Self) -> Self {
        *view
    }
}

impl<'a, T: Element> From<&'a mut [T]> for ViewMut<'a> {
    fn from(data: &'a mut [T]) -> Self {
        Self::of(data)
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} x {}, {:?})", self.len, self.dtype, self.place)
    }
}

impl fmt::Debug for ViewMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ViewMut({} x {}, {:?})", self.len, self.dtype, self.place)
    }
}

/// Memory that is released when it is dropped.
pub(crate) trait Allocation: Send + Sync {
    /// First byte; aligned for every element type.
    fn address(&mut self) -> *mut u8;
    /// Memory that the address belongs to.
    fn place(&self) -> Place;
}

/// Elements in host memory.
struct HostMemory(Vec<u64>);

impl Allocation for HostMemory {
    fn address(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }

    fn place(&self) -> Place {
        Place::Host
    }
}

/// Owned memory of a device, zeroed when it is allocated.
pub struct Buffer {
    _memory: Box<dyn Allocation>,
    address: *mut u8,
    len: usize,
    dtype: Dtype,
    place: Place,
}

// SAFETY: the buffer owns its memory, which is plain elements.
unsafe impl Send for Buffer {}
// SAFETY: as above; writes need a mutable borrow.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Zeros in memory of the process.
    pub fn on_host(dtype: Dtype, len: usize) -> Self {
        let memory = HostMemory(vec![0; (len * dtype.size()).div_ceil(8)]);
        Self::new(Box::new(memory), dtype, len)
    }

    /// Wraps memory of at least `len` elements.
    pub(crate) fn new(mut memory: Box<dyn Allocation>, dtype: Dtype, len: usize) -> Self {
        let (address, place) = (memory.address(), memory.place());
        Self { _memory: memory, address, len, dtype, place }
    }

    /// Number of elements.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All elements, to read.
    pub fn view(&self) -> View<'_> {
        let Self { address, len, dtype, place, .. } = *self;
        View { address, len, dtype, place, copy: None, lifetime: PhantomData }
    }

    /// All elements, to write.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let Self { address, len, dtype, place, .. } = *self;
        ViewMut { address, len, dtype, place, lifetime: PhantomData }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} x {}, {:?})", self.len, self.dtype, self.place)
    }
}
