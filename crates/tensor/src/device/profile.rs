//! Profile of a device: the time of each of its operations.

use super::view::Dtype;
use crate::fp8::Role;
use crate::gemm::Precision;
use std::collections::BTreeMap;
use std::fmt;

/// An operation of a device, as a profile tells it from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// A kernel of ours, by its name and the type of its activations.
    Kernel(&'static str, Dtype),
    /// A product of a library.
    Product(ProductShape),
    /// A copy.
    Copy(Transfer),
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transfer {
    /// Between buffers of the device.
    Inside,
    /// Of rows between buffers of the device.
    Rows,
    /// From the host.
    ToDevice,
    /// From the device.
    ToHost,
}

/// Shape, types and layout of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProductShape {
    /// Rows and columns of the result, and the length of its sums.
    pub mnk: (usize, usize, usize),
    /// Precision of both operands.
    pub operands: Precision,
    /// Roles of both operands, which determine their formats in fp8.
    pub roles: [Role; 2],
    /// Type of the result.
    pub result: Dtype,
    /// Whether each operand is stored as its transpose.
    pub transposed: [bool; 2],
    /// Whether it is added to its target.
    pub add: bool,
    /// Operation on the result; empty without one.
    pub epilogue: &'static str,
}

impl ProductShape {
    /// Additions and multiplications.
    pub fn flops(&self) -> f64 {
        let (m, n, k) = self.mnk;
        2.0 * m as f64 * n as f64 * k as f64
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(name, dtype) => write!(f, "{name} {dtype}"),
            Self::Copy(transfer) => f.write_str(match transfer {
                Transfer::Inside => "copy",
                Transfer::Rows => "copy of rows",
                Transfer::ToDevice => "copy to the device",
                Transfer::ToHost => "copy to the host",
            }),
            Self::Product(product) => product.fmt(f),
        }
    }
}

impl fmt::Display for ProductShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mnk: (m, n, k), operands, result, .. } = self;
        let [left, right] = self.transposed.map(|transposed| if transposed { 't' } else { 'n' });
        write!(f, "product {m}x{n}x{k} {left}{right} {operands}")?;
        if *result != Dtype::of_operands(*operands) {
            write!(f, " to {result}")?;
        }
        if self.add {
            f.write_str(" +=")?;
        }
        if !self.epilogue.is_empty() {
            write!(f, " {}", self.epilogue)?;
        }
        Ok(())
    }
}

/// Time that a device spent in an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperationTime {
    /// The operation.
    pub operation: Operation,
    /// How often it ran.
    pub calls: u64,
    /// Device time of all calls.
    pub seconds: f64,
    /// Bytes that all calls read and wrote, where they are known.
    pub bytes: Option<u64>,
}

/// Adds the times of equal operations; the longest come first.
pub fn merge_times(times: impl IntoIterator<Item = OperationTime>) -> Vec<OperationTime> {
    let mut merged = BTreeMap::<_, OperationTime>::new();
    for time in times {
        merged
            .entry(time.operation)
            .and_modify(|sum| {
                sum.calls += time.calls;
                sum.seconds += time.seconds;
                sum.bytes = sum.bytes.zip(time.bytes).map(|(sum, bytes)| sum + bytes);
            })
            .or_insert(time);
    }
    let mut merged: Vec<_> = merged.into_values().collect();
    merged.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    merged
}
