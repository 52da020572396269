//! Bottlenecks: the resource whose doubling shortens a step, or the communication of a group, most.
//!
//! A closed form can name the busiest link of one collective, but a step has many, some hidden, and
//! other resources beside links. So each resource is doubled in turn and the price taken again.

use super::cluster as time;
use crate::collective::group::Group;
use crate::collective::links::Links;
use crate::hardware::{Cluster, Topology};
use crate::job::Workload;
use crate::pipeline::Pipelines;
use serde::Serialize;

/// Shares of a time that a doubling must save to be called a bottleneck.
const LEAST_SAVED: f64 = 0.01;

/// A resource of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// Peak FLOP/s of the devices.
    Compute,
    /// Memory bandwidth of the devices.
    MemoryBandwidth,
    /// Links between the devices of a node.
    Links,
    /// NICs of the nodes.
    Nics,
    /// Uplinks of racks.
    Racks,
    /// Uplinks of the racks under a spine.
    Spines,
    /// Bandwidth of hosts: to their devices, of their memory and of their drives.
    Hosts,
    /// Bandwidth of the storage.
    Storage,
}

impl Resource {
    /// All resources.
    pub const ALL: [Self; 8] = [
        Self::Compute,
        Self::MemoryBandwidth,
        Self::Links,
        Self::Nics,
        Self::Racks,
        Self::Spines,
        Self::Hosts,
        Self::Storage,
    ];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "peak FLOP/s of the devices",
            Self::MemoryBandwidth => "memory bandwidth of the devices",
            Self::Links => "links inside nodes",
            Self::Nics => "NICs of nodes",
            Self::Racks => "uplinks of racks",
            Self::Spines => "uplinks of spines",
            Self::Hosts => "bandwidth of hosts",
            Self::Storage => "storage bandwidth",
        }
    }

    /// The cluster with twice as much of this resource and nothing else.
    fn doubled(self, cluster: &Cluster) -> Cluster {
        let mut more = cluster.clone();
        match self {
            Self::Compute => {
                more.device.peak_tflops *= 2.0;
                more.device.peak_tflops_fp8 *= 2.0;
            }
            Self::MemoryBandwidth => more.device.memory_gbps *= 2.0,
            Self::Links => more.link_gbps *= 2.0,
            Self::Nics => {
                more.network.device_gbps *= 2.0;
                // Uplinks are ratios of the NICs' bandwidth, and stay as fast as they are.
                scale_uplinks(&mut more.network.topology, 2.0, 1.0);
            }
            Self::Racks => scale_uplinks(&mut more.network.topology, 0.5, 2.0),
            Self::Spines => scale_uplinks(&mut more.network.topology, 1.0, 0.5),
            Self::Hosts => {
                more.host_gbps *= 2.0;
                more.host_memory_gbps *= 2.0;
                more.nvme_gbps *= 2.0;
            }
            Self::Storage => more.storage_gbps *= 2.0,
        }
        more
    }
}

/// Multiplies the oversubscription of racks and of spines.
fn scale_uplinks(topology: &mut Topology, racks: f64, spines: f64) {
    if let Topology::Racks { oversubscription, spine_oversubscription, .. } = topology {
        *oversubscription *= racks;
        *spine_oversubscription *= spines;
    }
}

/// A resource with the share of a time that twice as much of it saves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limit {
    /// The resource.
    pub resource: Resource,
    /// Saved share of the time.
    pub saves_share: f64,
}

/// Resources whose doubling shortens a step, the most effective first.
pub fn step_limits(workload: &Workload<'_>) -> Vec<Limit> {
    let mut pipelines = Pipelines::default();
    let mut seconds = |cluster: &Cluster| {
        let mut workload = *workload;
        workload.job.cluster = cluster;
        time::step(&workload, &mut pipelines).map_or(f64::INFINITY, |step| step.seconds)
    };
    ranked(workload.job.cluster, &Resource::ALL, &mut seconds)
}

/// Resources that shorten a time by at least a hundredth where they are doubled.
fn ranked(
    cluster: &Cluster,
    resources: &[Resource],
    seconds: &mut dyn FnMut(&Cluster) -> f64,
) -> Vec<Limit> {
    let all = seconds(cluster);
    let limit = |resource: &Resource| {
        let saves_share = 1.0 - seconds(&resource.doubled(cluster)) / all;
        Limit { resource: *resource, saves_share }
    };
    let mut limits: Vec<Limit> = resources.iter().map(limit).collect();
    limits.retain(|limit| limit.saves_share >= LEAST_SAVED);
    limits.sort_by(|a, b| b.saves_share.total_cmp(&a.saves_share));
    limits
}

/// Communication group of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CommGroup {
    /// Parallel axis.
    pub name: &'static str,
    /// Ranks of the group.
    pub group: Group,
    /// Links whose doubling shortens its communication most; `None` where latency is all of it.
    pub bottleneck: Option<Resource>,
}

/// Time of a group's communication on links.
type GroupPrice<'a> = &'a dyn Fn(&Links<'_>) -> f64;

/// Communication groups of a step, with their bottleneck links.
pub fn comm_groups(workload: &Workload<'_>) -> Vec<CommGroup> {
    let (job, layout) = (&workload.job, &workload.job.layout);
    let row = 2.0 * job.tokens() * job.model.width as f64;
    let routed = job.model.experts.map_or(0, |experts| experts.per_token) as f64;
    let stages =
        Group { ranks: layout.pipeline, stride: layout.tensor * layout.context * layout.data };
    let params = job.model.num_params() / (layout.tensor * layout.pipeline);
    let t = layout.tensor as f64;
    let links = [Resource::Links, Resource::Nics, Resource::Racks, Resource::Spines];
    let bottleneck = |price: GroupPrice<'_>| {
        let mut seconds = |cluster: &Cluster| price(&Links::new(cluster, workload.calibration));
        ranked(job.cluster, &links, &mut seconds).first().map(|limit| limit.resource)
    };
    let experts = Group { ranks: layout.expert, stride: layout.tensor };
    let (tensor, data) = (workload.tensor_group(), time::data_group(job));
    let gradients = job.framework.wire_bytes as f64 * params as f64;
    let all: [(_, _, GroupPrice<'_>); 4] = [
        ("tensor", tensor, &|links| links.all_reduce(tensor, row)),
        ("expert", experts, &|links| links.all_to_all(experts, routed * row / t)),
        ("pipeline", stages, &|links| links.hop(stages.stride, row / t)),
        ("data", data, &|links| links.all_reduce(data, gradients)),
    ];
    all.into_iter()
        .filter(|(_, group, _)| group.ranks > 1)
        .map(|(name, group, price)| CommGroup { name, group, bottleneck: bottleneck(price) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::scenario::Scenario;

    #[test]
    fn comm_groups_name_their_bottleneck_links() {
        let layout = Layout { tensor: 8, pipeline: 16, data: 8, ..Layout::ONE };
        let scenario = Scenario::of("gpt3-175b", "1024xa100-80gb", 64);
        let groups = comm_groups(&scenario.workload().with(layout));
        let names: Vec<&str> = groups.iter().map(|group| group.name).collect();
        assert_eq!(names, ["tensor", "pipeline", "data"]);
        let bottleneck = groups.iter().map(|group| group.bottleneck);
        let nics = Some(Resource::Nics);
        assert_eq!(bottleneck.collect::<Vec<_>>(), [Some(Resource::Links), nics, nics]);
    }

    #[test]
    fn an_all_to_all_between_nodes_is_limited_by_their_nics() {
        // 64 experts on eight nodes: seven of eight messages leave a node.
        let mut scenario = Scenario::of("deepseek-v3", "64xh100-80gb", 64);
        let layout = Layout { data: 64, expert: 64, zero: 3, ..Layout::ONE };
        let expert = |scenario: &Scenario| {
            let groups = comm_groups(&scenario.workload().with(layout));
            let expert = groups.into_iter().find(|group| group.name == "expert");
            expert.expect("an expert group").bottleneck
        };
        assert_eq!(expert(&scenario), Some(Resource::Nics));
        // The step agrees: twice the links inside nodes change nothing.
        let limits = step_limits(&scenario.workload().with(layout));
        let saves = |resource| limits.iter().find(|limit| limit.resource == resource);
        assert!(saves(Resource::Nics).is_some() && saves(Resource::Links).is_none(), "{limits:?}");
        assert_eq!(limits[0].resource, Resource::Nics, "{limits:?}");
        // Oversubscribed racks of two nodes each.
        scenario.cluster.network.topology = Topology::Racks {
            nodes_per_rack: 2,
            oversubscription: 8.0,
            racks_per_spine: 8,
            spine_oversubscription: 1.0,
        };
        assert_eq!(expert(&scenario), Some(Resource::Racks));
    }

    #[test]
    fn a_doubled_resource_leaves_all_others_as_they_are() {
        let mut cluster = Scenario::of("gpt2", "512xh100-80gb", 512).cluster;
        cluster.network.topology = Topology::Racks {
            nodes_per_rack: 4,
            oversubscription: 4.0,
            racks_per_spine: 4,
            spine_oversubscription: 2.0,
        };
        let gbps = |cluster: &Cluster| -> Vec<f64> {
            cluster.link_domains().map(|domain| domain.gbps).collect()
        };
        let before = gbps(&cluster);
        for (index, resource) in
            [Resource::Nics, Resource::Racks, Resource::Spines].into_iter().enumerate()
        {
            let mut expected = before.clone();
            expected[index] *= 2.0;
            assert_eq!(gbps(&resource.doubled(&cluster)), expected, "{resource:?}");
        }
    }
}
