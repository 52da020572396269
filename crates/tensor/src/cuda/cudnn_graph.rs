//! Graphs of operations on tensors, and plans that run them, by cuDNN.
//!
//! The library's heuristic names configurations of its engines for a graph, and the first that
//! compiles becomes the plan. The heuristic has no state: a version of the library gives the same
//! list for the same graph on the same device.

use super::cudnn::{Cudnn, Descriptor, Kind};
use super::driver::Handle;
use crate::device::error::{DeviceError, Result};
use crate::device::view::Dtype;
use std::ffi::c_int;

// Descriptors.
const POINTWISE: c_int = 0;
const ENGINE_CONFIG: c_int = 3;
const HEURISTIC: c_int = 4;
const PLAN: c_int = 5;
const OPERATION_POINTWISE: c_int = 13;
const OPERATION_GRAPH: c_int = 15;
const VARIANT_PACK: c_int = 16;
const TENSOR: c_int = 17;
const MATMUL: c_int = 18;
const OPERATION_MATMUL: c_int = 19;
const REDUCTION: c_int = 21;
const OPERATION_REDUCTION: c_int = 22;
const OPERATION_RESHAPE: c_int = 31;

// Attributes.
const POINTWISE_MODE: c_int = 0;
const POINTWISE_ELEMENT: c_int = 1;
const POINTWISE_AXIS: c_int = 9;
const HEURISTIC_MODE: c_int = 200;
const HEURISTIC_GRAPH: c_int = 201;
const HEURISTIC_RESULTS: c_int = 202;
const PLAN_HANDLE: c_int = 400;
const PLAN_CONFIG: c_int = 401;
const PLAN_WORKSPACE: c_int = 402;
const POINTWISE_DESCRIPTOR: c_int = 750;
/// First and second operand, and the condition of a choice.
const POINTWISE_INPUTS: [c_int; 3] = [751, 752, 758];
const POINTWISE_OUT: c_int = 753;
const POINTWISE_FACTORS: [c_int; 2] = [754, 755];
const GRAPH_HANDLE: c_int = 800;
const GRAPH_OPERATIONS: c_int = 801;
const TENSOR_ALIGNMENT: c_int = 900;
const TENSOR_ELEMENT: c_int = 901;
const TENSOR_DIMS: c_int = 902;
const TENSOR_STRIDES: c_int = 903;
const TENSOR_ID: c_int = 906;
const TENSOR_IS_VIRTUAL: c_int = 907;
const TENSOR_IS_VALUE: c_int = 908;
const PACK_IDS: c_int = 1000;
const PACK_POINTERS: c_int = 1001;
const PACK_WORKSPACE: c_int = 1003;
const MATMUL_ELEMENT: c_int = 1500;
/// Operands and result.
const MATMUL_TENSORS: [c_int; 3] = [1520, 1521, 1522];
const MATMUL_DESCRIPTOR: c_int = 1523;
const REDUCTION_OPERATOR: c_int = 1600;
const REDUCTION_ELEMENT: c_int = 1601;
const REDUCTION_TENSORS: [c_int; 2] = [1610, 1611];
const REDUCTION_DESCRIPTOR: c_int = 1612;
const RESHAPE_TENSORS: [c_int; 2] = [2200, 2201];

/// Decision trees over the shapes.
const HEURISTIC_MODE_A: c_int = 3;
/// Alignment of tensors that every caller guarantees, in bytes.
pub(super) const ALIGNMENT: u64 = 16;

/// Pointwise operations.
#[derive(Clone, Copy)]
pub(super) enum Pointwise {
    Add = 0,
    Multiply = 1,
    Divide = 6,
    Subtract = 9,
    Exp = 13,
    Log = 15,
    /// Whether the first operand is at least the second.
    AtLeast = 303,
    /// Position in one dimension.
    Index = 501,
    /// The first operand where the condition holds, else the second.
    Select = 601,
}

/// Reductions to a result that has one element in the dimensions that they reduce.
#[derive(Clone, Copy)]
pub(super) enum Reduction {
    Sum = 0,
    Max = 3,
}

/// Type of a tensor's elements, or of arithmetic.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Element(c_int);

impl Element {
    pub(super) const F32: Self = Self(0);
    pub(super) const I32: Self = Self(4);
    pub(super) const BOOL: Self = Self(11);

    /// The type of two-byte activations.
    pub(super) const fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F16 => Some(Self(2)),
            Dtype::Bf16 => Some(Self(9)),
            _ => None,
        }
    }
}

/// Place of a tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// Device memory, under an id that the caller chooses.
    Memory(i64),
    /// One `f32` on the host at the time of a call, under an id that the caller chooses.
    Value(i64),
    /// Inside the kernels of a plan.
    Virtual,
}

/// First id of virtual tensors.
const FIRST_VIRTUAL_ID: i64 = 1000;

/// A tensor of a graph.
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    handle: Handle,
    pub(super) dims: [i64; 4],
    pub(super) strides: [i64; 4],
}

/// A graph under construction.
pub(super) struct Graph<'a> {
    cudnn: &'a Cudnn,
    descriptors: Vec<Descriptor>,
    operations: Vec<Handle>,
    num_virtual: i64,
}

impl<'a> Graph<'a> {
    pub(super) const fn new(cudnn: &'a Cudnn) -> Self {
        Self { cudnn, descriptors: Vec::new(), operations: Vec::new(), num_virtual: 0 }
    }

    /// Adds a tensor.
    pub(super) fn tensor(
        &mut self,
        element: Element,
        dims: [i64; 4],
        strides: [i64; 4],
        storage: Storage,
    ) -> Result<Tensor> {
        let descriptor = self.cudnn.descriptor(TENSOR)?;
        descriptor.set(TENSOR_ELEMENT, Kind::ELEMENT, &[element.0])?;
        descriptor.set(TENSOR_DIMS, Kind::INT64, &dims)?;
        descriptor.set(TENSOR_STRIDES, Kind::INT64, &strides)?;
        let id = match storage {
            Storage::Memory(id) => id,
            Storage::Value(id) => {
                descriptor.set(TENSOR_IS_VALUE, Kind::BOOLEAN, &[true])?;
                id
            }
            Storage::Virtual => {
                descriptor.set(TENSOR_IS_VIRTUAL, Kind::BOOLEAN, &[true])?;
                self.num_virtual += 1;
                FIRST_VIRTUAL_ID + self.num_virtual
            }
        };
        descriptor.set(TENSOR_ID, Kind::INT64, &[id])?;
        descriptor.set(TENSOR_ALIGNMENT, Kind::INT64, &[ALIGNMENT as i64])?;
        descriptor.finalize()?;
        Ok(Tensor { handle: self.keep(descriptor), dims, strides })
    }

    /// Multiplies the matrices of the last two dimensions, with sums in `f32`.
    pub(super) fn multiply(&mut self, a: Tensor, b: Tensor, c: Tensor) -> Result<()> {
        let rule = self.cudnn.descriptor(MATMUL)?;
        rule.set(MATMUL_ELEMENT, Kind::ELEMENT, &[Element::F32.0])?;
        self.operation(OPERATION_MATMUL, Some((rule, MATMUL_DESCRIPTOR)), |operation| {
            set_tensors(operation, &MATMUL_TENSORS, &[a, b, c])
        })
    }

    /// Computes each element of `out` from those of its operands, which are broadcast.
    pub(super) fn pointwise(
        &mut self,
        mode: Pointwise,
        arithmetic: Element,
        operands: &[Tensor],
        out: Tensor,
    ) -> Result<()> {
        let rule = self.pointwise_rule(mode, arithmetic)?;
        self.add_pointwise(rule, operands, out)
    }

    /// Sets each element of `out` to its position in a dimension; `like` has the shape.
    pub(super) fn index(&mut self, axis: i64, like: Tensor, out: Tensor) -> Result<()> {
        let rule = self.pointwise_rule(Pointwise::Index, Element::F32)?;
        rule.set(POINTWISE_AXIS, Kind::INT64, &[axis])?;
        self.add_pointwise(rule, &[like], out)
    }

    fn pointwise_rule(&self, mode: Pointwise, arithmetic: Element) -> Result<Descriptor> {
        let rule = self.cudnn.descriptor(POINTWISE)?;
        rule.set(POINTWISE_MODE, Kind::POINTWISE, &[mode as c_int])?;
        rule.set(POINTWISE_ELEMENT, Kind::ELEMENT, &[arithmetic.0])?;
        Ok(rule)
    }

    fn add_pointwise(&mut self, rule: Descriptor, operands: &[Tensor], out: Tensor) -> Result<()> {
        self.operation(OPERATION_POINTWISE, Some((rule, POINTWISE_DESCRIPTOR)), |operation| {
            set_tensors(operation, &POINTWISE_INPUTS[..operands.len()], operands)?;
            set_tensors(operation, &[POINTWISE_OUT], &[out])?;
            for factor in POINTWISE_FACTORS {
                operation.set(factor, Kind::FLOAT, &[1.0f32])?;
            }
            Ok(())
        })
    }

    /// Reduces the dimensions in which `out` has fewer elements, in `f32`.
    pub(super) fn reduce(&mut self, reduction: Reduction, x: Tensor, out: Tensor) -> Result<()> {
        let rule = self.cudnn.descriptor(REDUCTION)?;
        rule.set(REDUCTION_ELEMENT, Kind::ELEMENT, &[Element::F32.0])?;
        rule.set(REDUCTION_OPERATOR, Kind::REDUCTION, &[reduction as c_int])?;
        self.operation(OPERATION_REDUCTION, Some((rule, REDUCTION_DESCRIPTOR)), |operation| {
            set_tensors(operation, &REDUCTION_TENSORS, &[x, out])
        })
    }

    /// Takes the elements in another shape, and perhaps in another type.
    pub(super) fn reshape(&mut self, x: Tensor, out: Tensor) -> Result<()> {
        self.operation(OPERATION_RESHAPE, None, |operation| {
            set_tensors(operation, &RESHAPE_TENSORS, &[x, out])
        })
    }

    /// Adds an operation: its rule, if it has one, and its tensors.
    fn operation(
        &mut self,
        kind: c_int,
        rule: Option<(Descriptor, c_int)>,
        set: impl FnOnce(&Descriptor) -> Result<()>,
    ) -> Result<()> {
        let operation = self.cudnn.descriptor(kind)?;
        if let Some((rule, attribute)) = rule {
            rule.finalize()?;
            operation.set(attribute, Kind::DESCRIPTOR, &[rule.handle])?;
            self.keep(rule);
        }
        set(&operation)?;
        operation.finalize()?;
        let handle = self.keep(operation);
        self.operations.push(handle);
        Ok(())
    }

    /// Keeps a descriptor as long as the plan: the library may refer to it.
    fn keep(&mut self, descriptor: Descriptor) -> Handle {
        let handle = descriptor.handle;
        self.descriptors.push(descriptor);
        handle
    }

    /// Plans the graph: by the configuration at `index` of the heuristic's list, or by the first
    /// that compiles. Returns the index too.
    pub(super) fn plan(mut self, index: Option<usize>) -> Result<(usize, Plan)> {
        let cudnn = self.cudnn;
        let graph = cudnn.descriptor(OPERATION_GRAPH)?;
        graph.set(GRAPH_OPERATIONS, Kind::DESCRIPTOR, &self.operations)?;
        graph.set(GRAPH_HANDLE, Kind::HANDLE, &[cudnn.handle])?;
        graph.finalize()?;
        let heuristic = cudnn.descriptor(HEURISTIC)?;
        heuristic.set(HEURISTIC_GRAPH, Kind::DESCRIPTOR, &[self.keep(graph)])?;
        heuristic.set(HEURISTIC_MODE, Kind::HEURISTIC, &[HEURISTIC_MODE_A])?;
        heuristic.finalize()?;
        let count = heuristic.get(HEURISTIC_RESULTS, Kind::DESCRIPTOR, &mut [])?;
        let configs = (0..count).map(|_| cudnn.descriptor(ENGINE_CONFIG));
        let configs = configs.collect::<Result<Vec<_>>>()?;
        let mut handles: Vec<Handle> = configs.iter().map(|config| config.handle).collect();
        let count = heuristic.get(HEURISTIC_RESULTS, Kind::DESCRIPTOR, &mut handles)?;
        self.keep(heuristic);
        let call = "cudnnBackendGetAttribute";
        let reason = format!("no such engine configuration among {count}");
        let mut failure = DeviceError::Failed { call, code: 0, reason };
        for (i, config) in configs.into_iter().enumerate().take(count) {
            if index.is_some_and(|index| index != i) {
                continue;
            }
            match Plan::compile(cudnn, &config) {
                Ok(descriptor) => {
                    self.keep(config);
                    let (descriptor, workspace_bytes) = descriptor;
                    let parts = self.descriptors;
                    return Ok((i, Plan { descriptor, workspace_bytes, _parts: parts }));
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

fn set_tensors(operation: &Descriptor, attributes: &[c_int], tensors: &[Tensor]) -> Result<()> {
    assert_eq!(attributes.len(), tensors.len(), "an attribute for each tensor");
    for (attribute, tensor) in attributes.iter().zip(tensors) {
        operation.set(*attribute, Kind::DESCRIPTOR, &[tensor.handle])?;
    }
    Ok(())
}

/// A compiled graph.
pub(super) struct Plan {
    descriptor: Descriptor,
    pub(super) workspace_bytes: usize,
    /// Descriptors that it was made from.
    _parts: Vec<Descriptor>,
}

impl Plan {
    /// Queues the plan on tensors at these addresses: (id, address in device memory, or address of
    /// a value on the host).
    ///
    /// # Safety
    /// Addresses must be those of memory that the tensors of the graph do not leave, and
    /// `workspace` that of as many bytes as the plan needs.
    pub(super) unsafe fn execute(
        &self,
        cudnn: &Cudnn,
        tensors: &[(i64, u64)],
        workspace: u64,
    ) -> Result<()> {
        let (ids, addresses): (Vec<i64>, Vec<u64>) = tensors.iter().copied().unzip();
        let pack = cudnn.descriptor(VARIANT_PACK)?;
        pack.set(PACK_WORKSPACE, Kind::POINTER, &[workspace])?;
        pack.set(PACK_POINTERS, Kind::POINTER, &addresses)?;
        pack.set(PACK_IDS, Kind::INT64, &ids)?;
        pack.finalize()?;
        // SAFETY: the caller guarantees the memory; both descriptors are finalized.
        unsafe { cudnn.execute(&self.descriptor, &pack) }
    }

    /// Compiles a configuration; returns the bytes of its workspace too.
    fn compile(cudnn: &Cudnn, config: &Descriptor) -> Result<(Descriptor, usize)> {
        let descriptor = cudnn.descriptor(PLAN)?;
        descriptor.set(PLAN_HANDLE, Kind::HANDLE, &[cudnn.handle])?;
        descriptor.set(PLAN_CONFIG, Kind::DESCRIPTOR, &[config.handle])?;
        descriptor.finalize()?;
        let mut bytes = [0i64];
        descriptor.get(PLAN_WORKSPACE, Kind::INT64, &mut bytes)?;
        Ok((descriptor, usize::try_from(bytes[0]).unwrap_or(0)))
    }
}
