//! The list of algorithms that products run by, as text: a part of a run, kept in its checkpoint.
//!
//! The first line names the library and the device, which an algorithm belongs to. Then comes a
//! line for each product, sorted: shape, types, strides, layouts, alignments, epilogue; and the
//! library's algorithm with its workspace, or nothing where our own kernel multiplies. Operands in
//! fp8 are named by the initials of their roles.
//!
//! ```text
//! cuBLASLt 13.0.2, compute capability 9.0
//! 64x96x320 bf16 f32 320 96 96 nn 256 256 256 1 = 2a 0 0 0 0 0 0 0 100000
//! ```

use crate::device::error::{DeviceError, Result};
use crate::device::view::Dtype;
use crate::fp8::Role;
use crate::gemm::Precision;
use std::collections::BTreeMap;
use std::fmt;

/// Bytes of workspace that algorithms may use; NVIDIA's advice for Hopper.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// Types of the left and the right operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operands {
    /// Both of one type.
    Same(Dtype),
    /// Both in fp8 with scales, in these roles.
    Fp8([Role; 2]),
}

impl Operands {
    /// Precision of the product.
    pub(super) const fn precision(self) -> Precision {
        match self {
            Self::Same(Dtype::Bf16) => Precision::Bf16,
            Self::Same(Dtype::F16) => Precision::F16,
            Self::Same(_) => Precision::F32,
            Self::Fp8(_) => Precision::Fp8,
        }
    }

    /// Roles of both; without fp8 they do not matter.
    pub(super) const fn roles(self) -> [Role; 2] {
        match self {
            Self::Same(_) => [Role::Activation; 2],
            Self::Fp8(roles) => roles,
        }
    }

    /// All that products have.
    fn all() -> impl Iterator<Item = Self> {
        use Role::{Activation, Gradient, Weight};
        let same = [Dtype::F32, Dtype::Bf16, Dtype::F16].map(Self::Same);
        let roles = [Activation, Weight, Gradient];
        let fp8 = roles.into_iter().flat_map(move |left| roles.map(|right| [left, right]));
        same.into_iter().chain(fp8.map(Self::Fp8))
    }
}

impl fmt::Display for Operands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let initial = |role| match role {
            Role::Activation => 'a',
            Role::Weight => 'w',
            Role::Gradient => 'g',
        };
        match self {
            Self::Same(dtype) => dtype.fmt(f),
            Self::Fp8([left, right]) => write!(f, "fp8-{}{}", initial(*left), initial(*right)),
        }
    }
}

/// Properties of a product that the choice of an algorithm depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Problem {
    pub(super) shape: (usize, usize, usize),
    pub(super) operands: Operands,
    pub(super) result: Dtype,
    pub(super) strides: [usize; 3],
    pub(super) transposed: [bool; 2],
    pub(super) alignments: [u32; 3],
    pub(super) epilogue: u32,
}

/// An algorithm of the library, which alone understands it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Algorithm {
    pub(super) data: [u64; 8],
    pub(super) workspace_bytes: usize,
}

/// Algorithms by product; `None` where the library has none.
pub(super) type Algorithms = BTreeMap<Problem, Option<Algorithm>>;

/// The two lists of a process.
#[derive(Default)]
pub(super) struct Lists {
    /// Algorithms in use.
    pub(super) chosen: Algorithms,
    /// Algorithms of an earlier process, which the library checks at their first use.
    pub(super) stored: Algorithms,
}

/// The list of a library and device.
pub(super) fn write(source: &str, algorithms: &Algorithms) -> String {
    let line = |(problem, algorithm): (&Problem, &Option<Algorithm>)| match algorithm {
        None => format!("{problem} =\n"),
        Some(Algorithm { data, workspace_bytes }) => {
            let data = data.map(|number| format!("{number:x}")).join(" ");
            format!("{problem} = {data} {workspace_bytes:x}\n")
        }
    };
    std::iter::once(format!("{source}\n")).chain(algorithms.iter().map(line)).collect()
}

/// Reads a list; refuses one of another library or device, and lines that [`write`] does not write.
pub(super) fn read(source: &str, list: &str) -> Result<Algorithms> {
    let mut lines = list.lines();
    let Some(theirs) = lines.next() else { return Ok(Algorithms::new()) };
    if theirs != source {
        let theirs: String = theirs.chars().take(80).collect();
        return refuse(format!(
            "they are those of {theirs:?}, but this is {source:?}; resume with that library and \
             device, or start a new run from the weights"
        ));
    }
    let mut algorithms = Algorithms::new();
    for (i, line) in lines.enumerate() {
        match parse(line) {
            Some((problem, algorithm)) if algorithms.insert(problem, algorithm).is_none() => {}
            _ => return refuse(format!("line {} of the list is damaged", i + 2)),
        }
    }
    Ok(algorithms)
}

/// Refuses a list.
pub(super) fn refuse<T>(reason: String) -> Result<T> {
    Err(DeviceError::Unsupported { operation: "stored algorithms of products", reason })
}

impl fmt::Display for Problem {
    /// A line without an equals sign.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape: (m, n, k), operands: from, result: to, strides: [a, b, c], .. } = self;
        let [left, right] = self.transposed.map(|transposed| if transposed { 't' } else { 'n' });
        let [first, second, target] = self.alignments;
        write!(f, "{m}x{n}x{k} {from} {to} {a} {b} {c} {left}{right} ")?;
        write!(f, "{first} {second} {target} {}", self.epilogue)
    }
}

fn parse(line: &str) -> Option<(Problem, Option<Algorithm>)> {
    let (problem, algorithm) = line.split_once(" =")?;
    let [shape, from, to, a, b, c, layout, first, second, target, epilogue] =
        fields(problem, ' ', |field| Some(field.to_owned()))?;
    let [m, n, k] = fields(&shape, 'x', |count| count.parse().ok())?;
    let dtype = |name: &str| {
        [Dtype::F32, Dtype::Bf16, Dtype::F16].into_iter().find(|dtype| dtype.to_string() == name)
    };
    let transposed = match layout.as_str() {
        "nn" => [false, false],
        "nt" => [false, true],
        "tn" => [true, false],
        "tt" => [true, true],
        _ => return None,
    };
    let problem = Problem {
        shape: (m, n, k),
        operands: Operands::all().find(|operands| operands.to_string() == from)?,
        result: dtype(&to)?,
        strides: [a.parse().ok()?, b.parse().ok()?, c.parse().ok()?],
        transposed,
        alignments: [first.parse().ok()?, second.parse().ok()?, target.parse().ok()?],
        epilogue: epilogue.parse().ok()?,
    };
    if algorithm.is_empty() {
        return Some((problem, None));
    }
    let hex = |number: &str| u64::from_str_radix(number, 16).ok();
    let [data @ .., workspace] = fields::<_, 9>(algorithm.strip_prefix(' ')?, ' ', hex)?;
    let workspace_bytes = usize::try_from(workspace).ok()?;
    let fits = workspace_bytes <= WORKSPACE_BYTES;
    fits.then_some((problem, Some(Algorithm { data, workspace_bytes })))
}

/// The `N` fields of a text, and no more.
pub(super) fn fields<T, const N: usize>(
    text: &str,
    separator: char,
    parse: impl Fn(&str) -> Option<T>,
) -> Option<[T; N]> {
    let fields: Option<Vec<T>> = text.split(separator).map(parse).collect();
    fields?.try_into().ok()
}
