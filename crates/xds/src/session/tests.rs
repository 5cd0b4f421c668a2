//! Transcripts of the messages on one stream: see [`play`].
//!
//! Names of upstream clusters and their assignments are abbreviated: `a` is `outbound|80||a`.

mod hosts;
mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost::Message;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::request_limits::{EVERYTHING, TYPES_MAX};
use super::*;
use crate::list::SharedList;
use crate::order::ANSWER_LIMIT;
use crate::resource::{All, Resource};
use strait_proto::envoy::envoy::config::core::v3::Node;
use strait_proto::envoy::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
    Resource as DeltaResource,
};
use strait_proto::envoy::google::protobuf::Any;
use strait_proto::envoy::google::rpc::Status;

const FORMS: [ProtocolForm; 2] = [ProtocolForm::Delta, ProtocolForm::Sotw];
const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
const EXTENSION: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";

// Both forms.

#[test]
fn first_responses_are_complete_and_in_the_order_of_references() {
    for form in FORMS {
        play(
            form,
            "has cds b=1 a=1
             has eds a=1 b=2
             has lds l=1
             has rds r=1
             slow
             ask rds r
             ask lds
             ask eds b a
             ask cds
             take
             -> cds #1 a=1 b=1
             take
             -> eds #2 a=1 b=2
             ack cds #1
             ack eds #2
             take
             -> lds #3 l=1
             take
             -> rds #4 r=1
             take
             -> nothing",
        );
    }
}

/// Envoy subscribes to the assignment of a new upstream cluster before it acknowledges the cluster.
#[test]
fn listeners_and_routes_wait_for_acknowledged_clusters_and_assignments() {
    for form in FORMS {
        let (b, both) = if form == ProtocolForm::Delta { ("b", "b=1") } else { ("a b", "a=1 b=1") };
        play(
            form,
            &format!(
                "has cds a=1
                 has eds a=1 b=1
                 has rds r=a
                 ask cds
                 -> cds #1 a=1
                 ask eds a
                 -> eds #2 a=1
                 ack cds #1
                 ack eds #2
                 ask lds
                 -> lds #3
                 ask rds r
                 -> rds #4 r=a
                 has cds b=1
                 has lds l=b
                 has rds r=b
                 has nds =b
                 everything
                 -> cds #5 {both}
                 ask eds #2 {b}
                 -> not awaited
                 -> eds #6 b=1
                 ack cds #5
                 set eds a=2
                 -> eds #7 a=2
                 ack eds #6
                 -> lds #8 l=b
                 -> rds #9 r=b
                 ask nds
                 -> nds #a =b"
            ),
        );
    }
}

/// Some clients acknowledge a new upstream cluster before they subscribe to its assignment.
#[test]
fn listeners_and_routes_wait_until_the_client_subscribes_to_new_assignments() {
    for form in FORMS {
        let (b, both) = if form == ProtocolForm::Delta { ("b", "b=1") } else { ("a b", "a=1 b=1") };
        play(
            form,
            &format!(
                "has cds a=1
                 has eds a=1 b=1
                 has rds r=a
                 ask cds
                 -> cds #1 a=1
                 ask eds a
                 -> eds #2 a=1
                 ack cds #1
                 ack eds #2
                 ask rds r
                 -> rds #3 r=a
                 ack rds #3
                 has cds b=1
                 has rds r=b
                 everything
                 -> cds #4 {both}
                 ack cds #4
                 patience
                 -> waits
                 ask eds #2 {b}
                 -> not awaited
                 -> eds #5 b=1
                 patience
                 -> waits
                 ack eds #5
                 -> rds #6 r=b"
            ),
        );
    }
}

#[test]
fn routes_wait_for_no_assignment_of_a_cluster_that_has_none() {
    for form in FORMS {
        let both = if form == ProtocolForm::Delta { "dns=1" } else { "a=1 dns=1" };
        play(
            form,
            &format!(
                "has cds a=1
                 has eds a=1
                 ask cds
                 -> cds #1 a=1
                 ask eds a
                 -> eds #2 a=1
                 ack cds #1
                 ack eds #2
                 has rds r=a
                 ask rds r
                 -> rds #3 r=a
                 ack rds #3
                 has cds dns=1
                 has rds r=dns
                 everything
                 -> cds #4 {both}
                 ack cds #4
                 -> rds #5 r=dns"
            ),
        );
    }
}

/// The assignment of a subset that no rule has any more is empty. Envoy would answer requests with
/// 503 between it and the removal of the cluster.
#[test]
fn no_empty_assignment_is_sent_before_the_client_unsubscribes_from_a_removed_cluster() {
    play(
        ProtocolForm::Delta,
        "has cds a=1 v1=1
         has eds a=1 v1=1
         ask cds
         -> cds #1 a=1 v1=1
         ask eds a v1
         -> eds #2 a=1 v1=1
         ack cds #1
         ack eds #2
         has cds -v1
         has eds v1=
         everything
         -> cds #3 -v1
         patience
         -> waits
         ask eds -v1
         ack cds #3
         take
         -> nothing",
    );
}

#[test]
fn rejected_cluster_does_not_delay_other_types() {
    for form in FORMS {
        play(
            form,
            "has cds a=1
             ask cds
             -> cds #1 a=1
             ask lds
             nack cds #1 because a is no cluster
             -> lds #2",
        );
    }
}

#[test]
fn waiting_response_is_sent_after_the_time_limit() {
    for form in FORMS {
        let (b, gone) =
            if form == ProtocolForm::Delta { ("b=1", "-a -b") } else { ("a=1 b=1", "") };
        play(
            form,
            &format!(
                "has cds a=1
                 ask cds
                 -> cds #1 a=1
                 ask lds
                 patience
                 -> waits
                 later
                 -> lds #2
                 patience
                 -> nothing
                 set cds b=1
                 -> cds #3 {b}
                 set lds l=b
                 -> lds #4 l=b
                 set cds -a -b
                 patience
                 -> waits
                 later
                 -> cds #5 {gone}"
            ),
        );
    }
}

#[test]
fn cluster_removal_waits_for_acknowledged_listeners_and_routes() {
    for form in FORMS {
        let (gone, listener) = if form == ProtocolForm::Delta { ("-a", "-l") } else { ("", "") };
        play(
            form,
            &format!(
                "has cds a=1
                 has eds a=1
                 has lds l=a
                 has rds r=a
                 ask cds
                 -> cds #1 a=1
                 ask eds a
                 -> eds #2 a=1
                 ack cds #1
                 ack eds #2
                 ask lds
                 -> lds #3 l=a
                 ask rds r
                 -> rds #4 r=a
                 ack lds #3
                 ack rds #4
                 has cds -a
                 has lds -l
                 has rds r=
                 has eds -a
                 everything
                 -> lds #5 {listener}
                 -> rds #6 r=
                 ack lds #5
                 ack rds #6
                 -> cds #7 {gone}
                 ack cds #7
                 -> eds #8 a="
            ),
        );
    }
}

/// The client does not have the route that it rejected: its previous route still refers to the
/// cluster.
#[test]
fn cluster_removal_waits_for_a_rejected_route_up_to_the_time_limit() {
    for form in FORMS {
        let gone = if form == ProtocolForm::Delta { "-a" } else { "" };
        play(
            form,
            &format!(
                "has cds a=1
                 has rds r=a
                 ask cds
                 -> cds #1 a=1
                 ack cds #1
                 ask rds r
                 -> rds #2 r=a
                 ack rds #2
                 has cds -a
                 has rds r=
                 everything
                 -> rds #3 r=
                 nack rds #3 because r is no route
                 patience
                 -> waits
                 later
                 -> cds #4 {gone}"
            ),
        );
    }
}

#[test]
fn name_table_has_an_empty_name_and_is_sent_last() {
    for form in FORMS {
        play(
            form,
            "has cds a=1
             has rds r=1
             has nds =1
             slow
             ask nds
             ask rds r
             ask cds
             take
             -> cds #1 a=1
             ack cds #1
             take
             -> rds #2 r=1
             take
             -> nds #3 =1
             ack nds #3
             set nds =2
             take
             -> nds #4 =2
             take
             -> nothing",
        );
    }
}

#[test]
fn empty_wildcard_is_answered_once() {
    for form in FORMS {
        play(
            form,
            "ask cds
             -> cds #1
             ack cds #1
             everything
             ask lds
             -> lds #2",
        );
    }
}

#[test]
fn acknowledgement_does_not_request_resources() {
    for form in FORMS {
        play(
            form,
            "has cds a=1
             has eds a=1
             ask cds
             -> cds #1 a=1
             ask eds a
             -> eds #2 a=1
             ack cds #1
             ack eds #2
             everything
             ask lds
             -> lds #3
             ack lds #3",
        );
    }
}

#[test]
fn names_apply_whatever_the_nonce_of_their_request() {
    for (form, b, c) in [(ProtocolForm::Delta, "b", "c"), (ProtocolForm::Sotw, "a b", "a b c")] {
        play(
            form,
            &format!(
                "has eds a=1 b=1 c=1
                 ask eds a
                 -> eds #1 a=1
                 set eds a=2
                 -> eds #2 a=2
                 ack eds #1 {b}
                 -> eds #3 b=1
                 ack eds #1 {c}
                 -> not awaited
                 -> eds #4 c=1
                 ack eds #no-such-nonce
                 -> not awaited
                 ack eds #ffff
                 -> not awaited
                 ack eds #3
                 ack eds #2
                 -> not awaited
                 ack cds #4
                 -> not awaited
                 -> cds #5"
            ),
        );
    }
}

#[test]
fn only_new_names_are_answered() {
    for form in FORMS {
        let more = if form == ProtocolForm::Delta { "c" } else { "a b c" };
        play(
            form,
            &format!(
                "has eds a=1 b=1 c=1
                 has rds r=1
                 ask eds a b
                 -> eds #1 a=1 b=1
                 ack eds #1 {more}
                 -> eds #2 c=1
                 ask rds r
                 -> rds #3 r=1"
            ),
        );
    }
}

#[test]
fn unknown_names_are_answered_with_empty_resources() {
    for form in FORMS {
        play(
            form,
            "ask eds ghost
             -> eds #1 ghost=
             ask rds ghost
             -> rds #2 ghost=
             set eds ghost=1
             -> eds #3 ghost=1
             set eds -ghost
             -> eds #4 ghost=",
        );
    }
}

#[test]
fn request_without_names_subscribes_to_nothing_of_a_named_type() {
    for form in FORMS {
        play(
            form,
            "has eds a=1
             ask eds
             ask rds
             set eds a=2
             everything",
        );
    }
}

#[test]
fn slow_client_receives_only_the_last_change() {
    for form in FORMS {
        play(
            form,
            "has cds a=1
             has eds a=1
             ask cds
             -> cds #1 a=1
             ask eds a
             -> eds #2 a=1
             slow
             set eds a=2
             set cds a=2 b=1
             set eds a=3
             set cds a=3 -b
             set eds a=4
             take
             -> cds #3 a=3
             take
             -> eds #4 a=4
             take
             -> nothing
             set eds a=5
             set eds a=4
             take
             -> nothing",
        );
    }
}

#[test]
fn assignments_of_changed_clusters_are_sent_after_the_clusters() {
    for form in FORMS {
        let b = if form == ProtocolForm::Delta { "" } else { " b=1" };
        // An Envoy that warms a cluster repeats its SotW request with the nonce it accepted before.
        play(
            form,
            &format!(
                "has cds a=1 b=1
                 has eds a=1 b=1
                 ask cds
                 -> cds #1 a=1 b=1
                 ask eds a b
                 -> eds #2 a=1 b=1
                 ack cds #1
                 ack eds #2
                 set cds a=2
                 -> cds #3 a=2{b}
                 -> eds #4 a=1
                 ack eds #2
                 -> not awaited
                 ack cds #3
                 ack eds #4"
            ),
        );
    }
}

#[test]
fn assignments_requested_before_clusters_are_sent_again_after_the_clusters() {
    for form in FORMS {
        play(
            form,
            "has cds a=1 b=1
             has eds a=1 b=1 c=1
             ask eds a c
             -> eds #1 a=1 c=1
             ask cds
             -> cds #2 a=1 b=1
             -> eds #3 a=1",
        );
    }
}

#[test]
fn removed_clusters_are_reported_and_send_no_assignments() {
    for (form, gone) in [(ProtocolForm::Delta, "-a"), (ProtocolForm::Sotw, "b=1")] {
        play(
            form,
            &format!(
                "has cds a=1 b=1
                 has eds a=1 b=1
                 ask cds
                 -> cds #1 a=1 b=1
                 ask eds a b
                 -> eds #2 a=1 b=1
                 set cds -a
                 -> cds #3 {gone}"
            ),
        );
    }
}

#[test]
fn clusters_are_removed_after_listeners_and_routes_are_acknowledged() {
    for form in FORMS {
        let (made, broken, listener) = match form {
            ProtocolForm::Delta => ("b=1", "-a", "m=1 -l"),
            ProtocolForm::Sotw => ("a=1 b=1", "b=1", "m=1"),
        };
        play(
            form,
            &format!(
                "has cds a=1
                 has eds a=1
                 has lds l=1
                 has rds r=a
                 ask cds
                 -> cds #1 a=1
                 ask eds a
                 -> eds #2 a=1
                 ack cds #1
                 ack eds #2
                 ask lds
                 -> lds #3 l=1
                 ask rds r
                 -> rds #4 r=a
                 has cds b=1 -a
                 has lds m=1 -l
                 has rds r=b
                 everything
                 -> cds #5 {made}
                 ack cds #5
                 -> lds #6 {listener}
                 -> rds #7 r=b
                 ack lds #6
                 ack rds #7
                 -> cds #8 {broken}"
            ),
        );
    }
}

#[test]
fn cluster_that_returns_before_its_removal_is_kept() {
    for form in FORMS {
        play(
            form,
            "has cds a=1
             has rds r=1
             ask cds
             -> cds #1 a=1
             ack cds #1
             ask rds r
             -> rds #2 r=1
             slow
             set rds r=2
             set cds -a
             take
             -> rds #3 r=2
             set cds a=1
             take
             -> nothing
             set cds a=2
             take
             -> cds #4 a=2
             take
             -> nothing",
        );
    }
}

#[test]
fn removed_listeners_are_reported() {
    for (form, gone) in [(ProtocolForm::Delta, "-l"), (ProtocolForm::Sotw, "")] {
        play(
            form,
            &format!(
                "has lds l=1
                 ask lds
                 -> lds #1 l=1
                 set lds -l
                 -> lds #2 {gone}"
            ),
        );
    }
}

#[test]
fn only_changes_of_subscribed_hosts_are_sent() {
    for form in FORMS {
        let drop_a = if form == ProtocolForm::Delta { "ask eds -a" } else { "ask eds #1 b" };
        play(
            form,
            &format!(
                "ask eds a b inbound|80||
                 -> eds #1 inbound|80||= a= b=
                 hosts
                 -> a b
                 {drop_a}
                 hosts
                 -> b
                 set eds a=1
                 set eds b=1
                 -> eds #2 b=1"
            ),
        );
    }
}

#[test]
fn requests_without_a_waiting_client_are_not_answered() {
    for form in FORMS {
        for url in [SECRET, EXTENSION] {
            play(form, &format!("ask {url}\nack {url} #0\n-> not awaited"));
        }
        play(
            form,
            "has cds a=1
             as nobody
             ask type.googleapis.com/istio.v1.HealthInformation
             as n
             ask type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig
             ask cds
             -> cds #1 a=1",
        );
    }
}

#[test]
fn everything_of_a_type_we_have_nothing_of_is_an_empty_answer() {
    for form in FORMS {
        let of_node_proxies = ["Address", "Workload"]
            .map(|kind| format!("type.googleapis.com/istio.workload.{kind}"));
        let policies = "type.googleapis.com/istio.security.Authorization".to_owned();
        for url in of_node_proxies.into_iter().chain([policies, "x.y/Z".to_owned()]) {
            play(
                form,
                &format!(
                    "ask {url}
                     -> {url} #1
                     ack {url} #1
                     everything
                     ask cds
                     -> cds #2
                     nack {url} #1 because I know better
                     -> not awaited
                     ack {url} #7
                     -> not awaited"
                ),
            );
        }
    }
}

#[test]
fn existing_resources_are_sent_before_missing_names() {
    for (form, gone) in [(ProtocolForm::Delta, " -a"), (ProtocolForm::Sotw, "")] {
        play(
            form,
            &format!(
                "has cds a=1
                 slow
                 ask {SECRET} a
                 ask cds
                 take
                 -> cds #1 a=1
                 take
                 -> {SECRET} #2{gone}
                 take
                 -> nothing"
            ),
        );
    }
}

#[test]
fn delta_names_of_an_unserved_type_are_removed() {
    for url in [SECRET, "x.y/Z"] {
        play(
            ProtocolForm::Delta,
            &format!(
                "ask {url} b a c@1 d@1 -d
                 -> {url} #1 -a -b -c
                 ack {url} #1
                 ask {url} -a e@1
                 ask {url} a
                 -> {url} #2 -a
                 ack {url} #2 f
                 -> {url} #3 -f
                 slow
                 ask {url} g h
                 ask {url} -g
                 take
                 -> {url} #4 -h"
            ),
        );
    }
    // Envoy breaks when an extension configuration is removed.
    play(ProtocolForm::Delta, &format!("ask {EXTENSION} a\n-> {EXTENSION} #1\nack {EXTENSION} #1"));
}

#[test]
fn sotw_names_of_an_unserved_type_are_answered_with_an_empty_response() {
    for url in [SECRET, EXTENSION, "x.y/Z"] {
        play(
            ProtocolForm::Sotw,
            &format!(
                "ask {url} a b
                 -> {url} #1
                 ack {url} #1 b a
                 nack {url} #1 because there is none
                 -> not awaited
                 ack {url} #1 a b c
                 -> not awaited
                 -> {url} #2
                 ask {url} a b c
                 -> {url} #3
                 ack {url} #3"
            ),
        );
    }
}

#[test]
fn number_of_unserved_types_per_stream_is_limited() {
    for form in FORMS {
        let mut stage = Stage::new(form);
        for n in 0..TYPES_MAX {
            stage.perform(&format!("ask x.y/Z{n}"));
        }
        stage.log.clear();
        stage.perform("ask x.y/Z0");
        stage.perform("ask x.y/more");
        let last = stage.log.pop().expect("an end");
        assert!(last.starts_with("-> ends: STR0502: a stream may ask for 32 types"), "{last}");
    }
}

#[test]
fn request_that_violates_the_protocol_ends_the_stream() {
    let long = format!("ask rds {}", "x".repeat(NAME_LENGTH_MAX + 1));
    let long_type = format!("ask {}", "x".repeat(NAME_LENGTH_MAX + 1));
    let cases = [
        ("as nobody\n ask cds", "the first request on a stream must carry the node"),
        (
            "ask cds\n -> cds #1\n as other\n ask cds",
            "the node of a stream can't change, from \"n\" to \"other\"",
        ),
        ("ask no-type", "a request must name a resource type"),
        (&long_type, "the name of a resource type is 513 bytes long, more than 512"),
        (&long, "a resource name of 513 bytes is longer than 512"),
    ];
    for (script, text) in cases {
        for form in FORMS {
            play(form, &format!("{script}\n -> ends: STR0502: {text}"));
        }
    }
}

#[test]
fn too_many_names_end_the_stream_in_one_or_several_requests() {
    let names: Vec<String> = (0..=NAMES_MAX).map(|n| format!("n{n}")).collect();
    let refused = Err(Violation::TooManyNames(NAMES_MAX + 1));
    for form in FORMS {
        let mut stage = Stage::new(form);
        let (last, most) = names.split_last().expect("some names");
        let watched = stage.request(ResourceType::Endpoint.url(), "", most, &[], &[], None);
        assert_eq!(watched, Ok(Handled::Request));
        let again = if form == ProtocolForm::Delta { std::slice::from_ref(last) } else { &names };
        assert_eq!(
            stage.request(ResourceType::Endpoint.url(), "", again, &[], &[], None),
            refused,
            "{form:?}"
        );
    }
}

#[test]
fn rejected_resource_is_sent_again_only_after_it_changes() {
    for form in FORMS {
        play(
            form,
            "has eds a=1 b=1
             ask eds a b
             -> eds #1 a=1 b=1
             nack eds #1 because outbound|80||b: no such thing
             refused eds
             -> b: outbound|80||b: no such thing
             everything
             set eds a=2
             -> eds #2 a=2
             ack eds #2
             refused eds
             -> b: outbound|80||b: no such thing
             set eds b=2
             -> eds #3 b=2
             nack eds #3 because all wrong
             refused eds
             -> b: all wrong
             set eds b=1
             -> eds #4 b=1
             ack eds #4
             refused eds
             -> nothing",
        );
    }
}

#[test]
fn rejection_without_names_applies_to_the_whole_response() {
    for form in FORMS {
        let gone = if form == ProtocolForm::Delta { "-a -b" } else { "" };
        play(
            form,
            &format!(
                "has cds a=1 b=1
                 ask cds
                 -> cds #1 a=1 b=1
                 nack cds #1 because I don't like it
                 refused cds
                 -> : I don't like it
                 set cds -a -b
                 -> cds #2 {gone}
                 refused cds
                 -> nothing"
            ),
        );
    }
}

#[test]
fn rejection_applies_only_to_the_resources_that_it_names() {
    for form in FORMS {
        // The text in which Envoy reports several upstream clusters. It accepts the other clusters
        // of the response.
        let all = if form == ProtocolForm::Delta { "a=2 c=2" } else { "a=2 b=1 c=2" };
        play(
            form,
            &format!(
                "has cds a=1 b=1 c=1
                 ask cds
                 -> cds #1 a=1 b=1 c=1
                 nack cds #1 because Error adding/updating cluster(s) outbound|80||a: no hosts, outbound|80||c: bad name
                 refused cds
                 -> a c: Error adding/updating cluster(s) outbound|80||a: no hosts, outbound|80||c: bad name
                 set cds a=2 c=2
                 -> cds #2 {all}
                 nack cds #2 because Error adding/updating cluster(s) outbound|80||c: bad name
                 refused cds
                 -> c: Error adding/updating cluster(s) outbound|80||c: bad name"
            ),
        );
    }
}

#[test]
fn only_a_prefix_of_a_long_error_is_searched_for_names() {
    let mut stage = Stage::new(ProtocolForm::Delta);
    for line in ["has cds a=1 b=1", "ask cds"] {
        stage.perform(line);
    }
    stage.perform(&format!("nack cds #1 because {} outbound|80||a", "ü".repeat(10_000)));
    let nack = stage.session.progress()[&ResourceType::Cluster].nack.clone();
    let nack = nack.expect("refused");
    assert_eq!((nack.resources.len(), nack.suspects.len()), (0, 2), "as if it named none");
}

#[test]
fn rejection_before_any_subscription_is_a_first_request() {
    for form in FORMS {
        play(
            form,
            "has cds a=1
             nack cds #1 because of another stream
             -> not awaited
             -> cds #1 a=1
             refused cds
             -> nothing
             nack eds #7
             -> not awaited",
        );
    }
}

#[test]
fn client_that_never_answers_uses_bounded_memory() {
    for form in FORMS {
        let mut stage = Stage::new(form);
        stage.perform("ask eds a");
        for n in 0..2000 {
            stage.perform(&format!("set eds a={n}"));
        }
        stage.log.clear();
        stage.perform("ack eds #1");
        stage.perform("ack eds #7d1");
        assert_eq!(stage.log, ["ack eds #1", "-> not awaited", "ack eds #7d1"], "{form:?}");
    }
}

#[test]
fn removed_clusters_leave_no_state_if_no_assignment_is_requested() {
    for form in FORMS {
        let mut stage = Stage::new(form);
        for line in ["has cds a=1", "ask cds", "set cds -a b=1"] {
            stage.perform(line);
        }
        let left: Vec<_> = stage.session.clusters_before_endpoints.others.iter().collect();
        assert_eq!(left, ["outbound|80||b"].map(Arc::from).each_ref(), "{form:?}");
    }
}

#[test]
fn progress_contains_sent_and_accepted_versions_and_times() {
    let mut versions = Vec::new();
    for form in FORMS {
        let mut stage = Stage::new(form);
        let cds = |stage: &Stage| stage.session.progress()[&ResourceType::Cluster].clone();
        stage.perform("has cds a=1 b=1");
        stage.perform("ask cds");
        let first = cds(&stage);
        assert_eq!(first.last_sent, Some(stage.now));
        assert_eq!((first.acked, first.last_acked), (None, None));
        stage.perform("ack cds #1");
        let accepted = cds(&stage);
        assert_eq!((accepted.sent, accepted.acked), (first.sent, first.sent));
        assert_eq!(accepted.last_acked, Some(stage.now));
        stage.perform("set cds a=2");
        let changed = cds(&stage);
        assert_ne!(changed.sent, first.sent);
        assert_eq!(changed.acked, first.sent);
        stage.perform("nack cds #2 because of a\u{7}");
        assert_eq!(cds(&stage).acked, first.sent);
        assert_eq!(cds(&stage).nack.expect("refused").error, "of a ");
        stage.perform("set cds a=1");
        assert_eq!(cds(&stage).sent, first.sent, "the same contents have the same version");
        versions.push((first.sent, changed.sent));
    }
    assert_eq!(versions[0], versions[1], "the forms give the same contents the same version");
}

// Delta.

#[test]
fn delta_sends_only_changes_of_a_wildcard() {
    play(
        ProtocolForm::Delta,
        "has cds a=1 b=1 c=1
         ask cds
         -> cds #1 a=1 b=1 c=1
         set cds a=2 -b d=1
         -> cds #2 a=2 d=1
         -> cds #3 -b
         set cds a=2
         everything",
    );
}

#[test]
fn delta_name_that_is_subscribed_to_again_is_sent_again() {
    play(
        ProtocolForm::Delta,
        "has cds a=1
         has eds a=1
         ask eds a
         -> eds #1 a=1
         ack eds #1
         ask eds a
         -> eds #2 a=1
         ask eds a -a
         -> eds #3 a=1
         ask eds -a
         set eds a=2
         everything
         hosts
         -> nothing
         ask eds -a -never
         ask eds a
         -> eds #4 a=2
         ask cds
         -> cds #5 a=1
         -> eds #6 a=2
         ask cds a
         -> cds #7 a=1
         -> eds #8 a=2",
    );
}

#[test]
fn delta_only_differences_are_sent_after_a_reconnect() {
    play(
        ProtocolForm::Delta,
        "has cds same=1 differs=2 new=1 foreign=1
         has eds same=1 differs=1 quiet=1 unlisted=1 foreign=1
         ask cds same@1 differs@1 gone@1 foreign@?
         -> cds #1 differs=2 foreign=1 new=1
         -> cds #2 -gone
         ask eds same differs quiet unlisted changed same@1/1 differs@1/1 quiet@1 changed@1 foreign@1/1
         -> eds #3 changed= differs=1 foreign=1 unlisted=1
         ack cds #1
         ack eds #3
         ask rds r@1 r
         -> rds #4 r=",
    );
}

/// Unchanged resources of these types are not sent after a reconnect, so no answer confirms them.
#[test]
fn delta_listed_resources_are_reported_as_accepted() {
    let mut stage = Stage::new(ProtocolForm::Delta);
    for line in ["has eds a=1", "has rds r=1", "ask eds a@1 a", "ask rds r@1 r"] {
        stage.perform(line);
    }
    for kind in [ResourceType::Endpoint, ResourceType::Route] {
        let progress = &stage.session.progress()[&kind];
        assert!(progress.sent.is_some() && progress.sent == progress.acked, "{progress:?}");
        assert_eq!(progress.last_sent, None);
    }
}

#[test]
fn delta_listed_names_are_subscribed_to() {
    play(
        ProtocolForm::Delta,
        "has cds same=1 differs=2 other=1
         has eds same=1 differs=2 asked=1
         has rds r=1
         ask eds asked same@1 differs@1 gone@1 dropped@1 -dropped
         -> eds #1 asked=1 differs=2 gone=
         hosts
         -> asked differs gone same
         set eds same=2
         -> eds #2 same=2
         ask rds r@1 s@1
         -> rds #3 s=
         ack rds #3
         ask cds other same@1 differs@1 gone@1
         -> cds #4 differs=2 other=1
         -> eds #5 differs=2
         -> cds #6 -gone
         set cds same=2 more=1
         -> cds #7 same=2
         -> eds #8 same=2",
    );
}

#[test]
fn delta_first_request_without_names_subscribes_to_all_resources() {
    for (first, then) in [
        ("ask cds a@1 gone@1", "-> cds #1\n-> cds #2 -gone\nset cds b=1\n-> cds #3 b=1"),
        ("ask cds * a@1 gone@1", "-> cds #1\n-> cds #2 -gone\nset cds b=1\n-> cds #3 b=1"),
        ("ask cds -b", "-> cds #1 a=1\nset cds b=1\n-> cds #2 b=1"),
        ("ask cds -*", "set cds a=2"),
        ("ask cds -* a", "-> cds #1 a=1\nset cds b=1"),
    ] {
        play(ProtocolForm::Delta, &format!("has cds a=1\n{first}\n{then}"));
    }
}

#[test]
fn delta_unchanged_reconnect_receives_one_empty_response_per_wildcard_type() {
    play(
        ProtocolForm::Delta,
        "has cds a=1
         has eds a=1
         has lds l=1
         has rds r=1
         ask cds a@1
         -> cds #1
         ask eds a a@1/1
         ask rds r r@1
         ask lds l@1
         -> lds #2
         ack cds #1
         everything
         set eds a=2
         -> eds #3 a=2",
    );
}

#[test]
fn delta_changed_clusters_send_unchanged_assignments_after_a_reconnect() {
    play(
        ProtocolForm::Delta,
        "has cds a=2 b=1
         has eds a=1 b=1
         ask cds a@1 b@1
         -> cds #1 a=2
         ask eds a b a@1/1 b@1/1
         -> eds #2 a=1",
    );
}

#[test]
fn delta_cluster_that_waited_when_the_stream_broke_receives_its_assignment() {
    // The cluster changed from 1 to 2 before, and the assignment that was to follow was lost.
    play(
        ProtocolForm::Delta,
        "has cds a=2 b=1
         has eds a=1 b=1
         ask cds a@2 b@1
         -> cds #1
         ask eds a b a@1/1 b@1/1
         -> eds #2 a=1",
    );
    // The cluster then changes back to the version in the assignment's combined version.
    play(
        ProtocolForm::Delta,
        "has cds a=1
         has eds a=1
         ask cds a@2
         -> cds #1 a=1
         ask eds a a@1/1
         -> eds #2 a=1",
    );
}

#[test]
fn delta_assignments_listed_before_their_clusters_are_sent() {
    play(
        ProtocolForm::Delta,
        "has cds a=1
         has eds a=1
         ask eds a a@1/1
         -> eds #1 a=1
         ask cds a@1
         -> cds #2",
    );
}

#[test]
fn delta_versions_in_later_requests_are_ignored() {
    play(
        ProtocolForm::Delta,
        "has eds a=1 b=1
         ask eds a
         -> eds #1 a=1
         ask eds b b@1
         -> eds #2 b=1",
    );
}

#[test]
fn delta_wildcard_can_be_subscribed_to_by_name_and_unsubscribed() {
    play(
        ProtocolForm::Delta,
        "has cds a=1 b=1
         ask cds a ghost
         -> cds #1 a=1
         -> cds #2 -ghost
         set cds b=2
         ask cds *
         -> cds #3 b=2
         ask cds -a
         -> cds #4 a=1
         ask cds -ghost
         -> cds #5 -ghost
         ask cds b
         -> cds #6 b=2
         ask cds -*
         set cds a=2 b=3
         -> cds #7 b=3
         set cds -b
         -> cds #8 -b
         ask cds * -b
         -> cds #9 a=2
         ask cds -* a
         -> cds #a a=2
         ask eds *
         everything",
    );
}

#[test]
fn delta_named_resource_is_sent_and_removed_with_the_source() {
    play(
        ProtocolForm::Delta,
        "has cds a=1
         ask cds ghost
         -> cds #1 -ghost
         set cds a=2
         set cds ghost=1
         -> cds #2 ghost=1
         set cds -ghost
         -> cds #3 -ghost
         set cds ghost=1
         -> cds #4 ghost=1
         ask cds -ghost
         set cds ghost=2
         ask cds ghost
         -> cds #5 ghost=2",
    );
}

#[test]
fn delta_name_unsubscribed_and_subscribed_again_before_a_response_is_sent_once() {
    play(
        ProtocolForm::Delta,
        "has eds a=1 b=1
         ask eds a b
         -> eds #1 a=1 b=1
         slow
         set eds a=2 b=2
         ask eds -a -b
         ask eds a
         take
         -> eds #2 a=2
         take
         -> nothing",
    );
}

#[test]
fn delta_large_response_is_divided_without_losses() {
    play(
        ProtocolForm::Delta,
        "has cds a=1 b=1 c=1 d=1
         has eds a=1 b=1 c=1 d=1
         limit 28
         slow
         ask eds a
         ask cds gone@1
         take
         -> cds #1 a=1 b=1
         take
         -> cds #2 c=1 d=1
         set cds a=2 -c
         take
         -> cds #3 a=2
         take
         -> eds #4 a=1
         take
         -> cds #5 -c -gone
         take
         -> nothing",
    );
}

// State of the world.

#[test]
fn sotw_request_without_a_nonce_is_answered_in_full() {
    play(
        ProtocolForm::Sotw,
        "has cds a=1 b=1
         has eds a=1 b=1
         ask cds
         -> cds #1 a=1 b=1
         ask eds a b
         -> eds #2 a=1 b=1
         ask eds a b
         -> eds #3 a=1 b=1
         ask cds
         -> cds #4 a=1 b=1",
    );
}

#[test]
fn sotw_names_replace_the_previous_names() {
    play(
        ProtocolForm::Sotw,
        "has eds a=1 b=1 c=1
         ask eds a b
         -> eds #1 a=1 b=1
         ack eds #1 b c
         -> eds #2 c=1
         set eds a=2
         everything
         ack eds #2 b
         ack eds #2 nothing
         -> not awaited
         set eds b=2
         ack eds #2 a
         -> not awaited
         -> eds #3 a=2",
    );
}

#[test]
fn sotw_request_without_names_subscribes_to_nothing_after_a_named_one() {
    play(
        ProtocolForm::Sotw,
        "has cds a=1 b=1
         ask cds
         -> cds #1 a=1 b=1
         ack cds #1 a
         -> cds #2 a=1
         set cds b=2
         ack cds #2 a *
         -> cds #3 a=1 b=2
         ack cds #3 nothing
         set cds a=2
         everything
         ack cds #3 *
         -> not awaited
         -> cds #4 a=2 b=2",
    );
}

#[test]
fn sotw_change_sends_all_of_a_wildcard_type_and_only_changes_of_a_named_type() {
    play(
        ProtocolForm::Sotw,
        "has cds a=1 b=1
         has eds a=1 b=1
         ask cds
         -> cds #1 a=1 b=1
         ask eds a b
         -> eds #2 a=1 b=1
         set cds c=1
         -> cds #3 a=1 b=1 c=1
         set eds b=2
         -> eds #4 b=2",
    );
}

#[test]
fn sotw_responses_are_divided_for_named_types_only() {
    play(
        ProtocolForm::Sotw,
        "has cds a=1 b=1 c=1
         has eds a=1 b=1 c=1
         limit 28
         ask cds
         -> cds #1 a=1 b=1 c=1
         ask eds a b c
         -> eds #2 a=1 b=1
         -> eds #3 c=1",
    );
}

#[test]
fn sotw_missing_cluster_is_reported_by_one_response() {
    play(
        ProtocolForm::Sotw,
        "has cds a=1
         slow
         ask cds a ghost
         take
         -> cds #1 a=1
         ack cds #1 a ghost
         take
         -> nothing
         set cds ghost=1
         take
         -> cds #2 a=1 ghost=1",
    );
}

#[test]
fn sotw_proxyless_client_receives_all_subscribed_resources_each_time() {
    play(
        ProtocolForm::Sotw,
        "whole
         has eds a=1 b=1 c=1
         has lds l=1 m=1
         limit 1
         ask eds a b
         -> eds #1 a=1 b=1
         ack eds #1 a b c
         -> eds #2 a=1 b=1 c=1
         set eds b=2
         -> eds #3 a=1 b=2 c=1
         ack eds #3 a c
         set eds b=3
         set eds c=2
         -> eds #4 a=1 c=2
         ask lds l ghost
         -> lds #5 l=1",
    );
}

// Encoding.

#[test]
fn encoded_responses_are_decoded_by_prost() {
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..500 {
        let response = random_response(&mut random);
        let bytes = Vec::from(response.to_bytes());
        assert_eq!(bytes.len(), response.encoded_len(), "{response:?}");
        check_bytes(&response, &bytes);
    }
}

fn random_response(random: &mut StdRng) -> Response {
    let text = |random: &mut StdRng, most: usize| -> String {
        let length = random.random_range(0..=most);
        (0..length)
            .map(|_| *b"ab|~".get(random.random_range(0..4)).expect("four") as char)
            .collect()
    };
    let resources = (0..random.random_range(0..5)).map(|_| {
        let body: Vec<u8> = (0..random.random_range(0..300)).map(|_| random.random()).collect();
        let body = if random.random() { body } else { Vec::new() };
        let resource = Arc::new(Resource::new(text(random, 200), body));
        Versioned { resource, version: Version(random.random()) }
    });
    let resources = resources.collect();
    let kind = ResourceType::ALL[random.random_range(0..ResourceType::ALL.len())];
    let pieces = (0..random.random_range(0..3)).flat_map(|_| {
        let body: Vec<u8> = (0..random.random_range(0..900)).map(|_| random.random()).collect();
        let list = Arc::new([Arc::new(Resource::new(text(random, 200), body))]);
        SharedList::new(kind, list, 1).pieces().to_vec()
    });
    let pieces = pieces.collect();
    let form = if random.random() { ProtocolForm::Delta } else { ProtocolForm::Sotw };
    let gone = if form == ProtocolForm::Delta { random.random_range(0..4) } else { 0 };
    Response {
        form,
        kind,
        version: Version(random.random()),
        nonce: text(random, 20),
        pieces,
        resources,
        removed: (0..gone).map(|_| text(random, 200).into()).collect(),
    }
}

fn check_bytes(response: &Response, bytes: &[u8]) {
    let version = response.version.to_string();
    let type_url = response.kind.url().to_owned();
    let any =
        |one: &Resource| Any { type_url: type_url.clone(), value: one.body.to_bytes().into() };
    let nonce = response.nonce.clone();
    match response.form {
        ProtocolForm::Delta => {
            let resource = |(one, version): (&Arc<Resource>, Version)| DeltaResource {
                name: one.name.to_string(),
                version: version.to_string(),
                resource: Some(any(one)),
                ..Default::default()
            };
            let expected = DeltaDiscoveryResponse {
                system_version_info: version,
                resources: response.all().map(resource).collect(),
                removed_resources: response.removed.iter().map(ToString::to_string).collect(),
                nonce,
                type_url: type_url.clone(),
                ..Default::default()
            };
            assert_eq!(DeltaDiscoveryResponse::decode(bytes), Ok(expected));
        }
        ProtocolForm::Sotw => {
            let expected = DiscoveryResponse {
                version_info: version,
                resources: response.all().map(|(one, _)| any(one)).collect(),
                nonce,
                type_url: type_url.clone(),
                ..Default::default()
            };
            assert_eq!(DiscoveryResponse::decode(bytes), Ok(expected));
        }
    }
}

// The test harness.

/// Runs the lines of `script` that do not begin with `->`, and compares the resulting transcript
/// with the whole script. After each line, all due responses are sent.
///
/// ```text
/// has TYPE name=value …    set resources of the source without notifying the session
/// set TYPE name=value -name …    set or remove resources of the source and notify the session
/// everything               notify the session that any resource may have changed
/// ask TYPE [#nonce] name … send a request; Delta: `-name` unsubscribes, `name@value` is an initial
///                          version (`name@value/value`: of an assignment and its cluster),
///                          `name@?` is another server's version
/// ack, nack TYPE #nonce name … [because …]    answer a response; SotW: without names, the last ones
/// hosts, refused TYPE      show the subscribed hosts, or the rejected resources
/// as NODE|nobody           set the node of the next request, or omit it
/// slow, take               stop sending responses from now on; send one response
/// apart                    serve virtual hosts individually: `TYPE` vhds has `ROUTE=HOST:value,…`
/// later                    advance the time until no response waits for an answer
/// patience                 show whether a response waits for an answer
/// limit BYTES, whole       limit the size of responses; send complete SotW responses
/// -> TYPE #nonce name=value … -name …    a response
/// ```
fn play(form: ProtocolForm, script: &str) {
    let script: Vec<&str> = script.lines().map(str::trim).collect();
    let mut stage = Stage::new(form);
    script.iter().filter(|line| !line.starts_with("->")).for_each(|line| stage.perform(line));
    assert_eq!(stage.log, script, "{form:?}:\n{}\n", stage.log.join("\n"));
}

/// The resources of a proxy.
#[derive(Debug, Clone, Default)]
struct Source {
    resources: BTreeMap<ResourceType, BTreeMap<Arc<str>, Arc<Resource>>>,
    /// Names of wildcard resources that are shared by many clients, and the size of the list pieces
    /// in bytes.
    shared: BTreeSet<&'static str>,
    piece_bytes: usize,
    /// The hosts of each route, with their values.
    hosts: BTreeMap<Arc<str>, BTreeMap<String, String>>,
    /// Lists are built once for each content, as the generators do.
    lists: BTreeMap<ResourceType, Arc<SharedList>>,
}

impl Source {
    fn set(&mut self, kind: ResourceType, name: &str, value: &str) {
        if kind == ResourceType::VirtualHost {
            let pairs = value.split(',').filter_map(|pair| pair.split_once(':'));
            let pairs = pairs.map(|(host, value)| (host.to_owned(), value.to_owned()));
            self.hosts.insert(name.into(), pairs.collect());
            return;
        }
        let resource = Arc::new(Resource::new(name, value.to_owned()));
        self.resources.entry(kind).or_default().insert(name.into(), resource);
    }

    fn remove(&mut self, kind: ResourceType, name: &str) {
        self.resources.entry(kind).or_default().remove(name);
    }

    fn of(&self, kind: ResourceType) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.get(&kind).into_iter().flat_map(BTreeMap::values)
    }
}

impl ResourceSource for Source {
    fn all(&mut self, kind: ResourceType) -> All {
        assert!(kind.is_wildcard(), "all of {kind:?}");
        let is_shared = |one: &Arc<Resource>| self.shared.contains(short(&one.name));
        let (shared, own): (Vec<_>, Vec<_>) = self.of(kind).cloned().partition(is_shared);
        let list = SharedList::new(kind, shared.into(), self.piece_bytes);
        if self.lists.get(&kind) != Some(&list) {
            self.lists.insert(kind, list);
        }
        All { shared: Arc::clone(&self.lists[&kind]), own }
    }

    fn one(&mut self, kind: ResourceType, name: &str) -> Option<Arc<Resource>> {
        if kind == ResourceType::VirtualHost {
            return Some(Arc::new(hosts::route(name, self.hosts.get(name))));
        }
        let known = self.resources.get(&kind).and_then(|of_kind| of_kind.get(name)).cloned();
        known.or_else(|| (!kind.is_wildcard()).then(|| Arc::new(Resource::new(name, ""))))
    }

    fn is_assigned(&self, cluster: &Resource) -> bool {
        self.of(ResourceType::Endpoint).any(|one| one.name == cluster.name)
    }
}

struct Stage {
    session: Session,
    source: Source,
    form: ProtocolForm,
    node: Option<String>,
    /// The names in the last request of each type.
    named: BTreeMap<String, Vec<String>>,
    limit: usize,
    slow: bool,
    now: SystemTime,
    log: Vec<String>,
}

impl Stage {
    fn new(form: ProtocolForm) -> Self {
        Self {
            session: Session::new(form),
            source: Source::default(),
            form,
            node: Some("n".into()),
            named: BTreeMap::new(),
            limit: usize::MAX,
            slow: false,
            now: SystemTime::UNIX_EPOCH,
            log: Vec::new(),
        }
    }

    fn perform(&mut self, line: &str) {
        self.log.push(line.to_owned());
        self.now += Duration::from_millis(1);
        let mut words = line.split_whitespace();
        let verb = words.next().expect("a verb");
        let rest: Vec<&str> = words.collect();
        match verb {
            "has" | "set" => self.change(verb == "set", &rest),
            "everything" => {
                self.session.on_change(&Dirty { everything: true, ..Dirty::default() });
            }
            "ask" | "ack" | "nack" => self.say(verb, &rest),
            "as" => self.node = Some(rest[0].to_owned()).filter(|node| node != "nobody"),
            "hosts" => {
                let names = self.session.assignments().filter(|name| name.starts_with("outbound|"));
                self.show(names.map(|name| short(name).to_owned()).collect());
            }
            "refused" => {
                let progress = self.session.progress().remove(&kind(rest[0]).expect("a type"));
                self.show(progress.and_then(|progress| progress.nack).map_or(vec![], |nack| {
                    let names: Vec<_> = nack.resources.iter().map(|name| short(name)).collect();
                    vec![format!("{}: {}", names.join(" "), nack.error)]
                }));
            }
            "slow" => self.slow = true,
            "later" => self.now += ANSWER_LIMIT,
            "patience" => {
                let waits = self.session.send_timeout(self.now).map(|_| "waits".to_owned());
                self.show(waits.into_iter().collect());
            }
            "take" => {
                if !self.send() {
                    self.show(Vec::new());
                }
            }
            "limit" => self.limit = rest[0].parse().expect("a number"),
            "apart" => self.session.serve_virtual_hosts(),
            "whole" => self.session.answer_completely(),
            _ => panic!("no such verb: {line}"),
        }
        let mut count = 0;
        while !self.slow && self.send() {
            count += 1;
            assert!(count < 100, "endless responses: {:#?}", self.log);
        }
    }

    fn show(&mut self, words: Vec<String>) {
        let shown = if words.is_empty() { "nothing".into() } else { words.join(" ") };
        self.log.push(format!("-> {shown}"));
    }

    fn change(&mut self, tell: bool, words: &[&str]) {
        let (of, names) = words.split_first().expect("a type");
        let of = kind(of).expect("a type");
        let lists = of.wildcard().into_iter().collect();
        let mut dirty = Dirty { lists, ..Dirty::default() };
        for word in names {
            let name = match word.split_once('=') {
                Some((name, value)) => {
                    self.source.set(of, &full(of, name), value);
                    name
                }
                None => {
                    let name = word.strip_prefix('-').expect("name=value or -name");
                    self.source.remove(of, &full(of, name));
                    name
                }
            };
            match of {
                ResourceType::Endpoint => dirty.endpoints.push(full(of, name).into()),
                ResourceType::Route | ResourceType::VirtualHost => {
                    dirty.routes.insert(full(of, name).into());
                }
                _ => {}
            }
        }
        if tell {
            self.session.on_change(&dirty);
        }
    }

    fn say(&mut self, verb: &str, words: &[&str]) {
        let because = words.iter().position(|word| *word == "because");
        let (words, reason) = words.split_at(because.unwrap_or(words.len()));
        let error = (verb == "nack").then(|| reason.iter().skip(1).copied().collect::<Vec<_>>());
        let (of, words) = words.split_first().expect("a type");
        let kind = kind(of);
        let url = match kind {
            Some(kind) => kind.url(),
            None => Some(*of).filter(|of| *of != "no-type").unwrap_or_default(),
        };
        let full = |name: &str| kind.map_or(name.to_owned(), |kind| full(kind, name));
        let (mut nonce, mut names, mut dropped, mut listed) = ("", vec![], vec![], vec![]);
        for word in words {
            if let Some(number) = word.strip_prefix('#') {
                nonce = number;
            } else if let Some(name) = word.strip_prefix('-') {
                dropped.push(full(name));
            } else if let Some((name, value)) = word.split_once('@') {
                let of = |value| Resource::new("", String::from(value)).version;
                let version = match (value, kind) {
                    ("?", _) => "2026-01-01/7".into(),
                    (_, Some(ResourceType::VirtualHost)) => hosts::version(name, value).to_string(),
                    _ => Version(value.split('/').fold(0, |all, one| all ^ of(one).0)).to_string(),
                };
                listed.push((full(name), version));
            } else {
                names.push(full(word));
            }
        }
        if self.form == ProtocolForm::Sotw {
            if names == [full("nothing")] {
                names.clear();
            } else if names.is_empty() && verb != "ask" {
                names = self.named.get(url).cloned().unwrap_or_default();
            }
            self.named.insert(url.to_owned(), names.clone());
        }
        let error = error.map(|words| words.join(" "));
        match self.request(url, nonce, &names, &dropped, &listed, error) {
            Ok(Handled::Request) if !nonce.is_empty() => self.log.push("-> not awaited".into()),
            Ok(_) => {}
            Err(violation) => self.log.push(format!("-> ends: {violation}")),
        }
    }

    fn request(
        &mut self,
        type_url: &str,
        nonce: &str,
        names: &[String],
        dropped: &[String],
        listed: &[(String, String)],
        error: Option<String>,
    ) -> Result<Handled, Violation> {
        let node = self.node.take().map(|id| Node { id, ..Default::default() });
        let type_url = type_url.to_owned();
        let response_nonce = nonce.to_owned();
        let error_detail = error.map(|message| Status { message, ..Default::default() });
        let bytes = match self.form {
            ProtocolForm::Delta => DeltaDiscoveryRequest {
                node,
                type_url,
                resource_names_subscribe: names.to_vec(),
                resource_names_unsubscribe: dropped.to_vec(),
                initial_resource_versions: listed.iter().cloned().collect(),
                response_nonce,
                error_detail,
                ..Default::default()
            }
            .encode_to_vec(),
            ProtocolForm::Sotw => {
                assert!(dropped.is_empty() && listed.is_empty(), "only Delta has these");
                DiscoveryRequest {
                    node,
                    type_url,
                    resource_names: names.to_vec(),
                    response_nonce,
                    error_detail,
                    ..Default::default()
                }
                .encode_to_vec()
            }
        };
        let request = AdsRequest::read(self.form, &bytes).expect("a request");
        self.session.on_request(request, Some(&mut self.source), self.now)
    }

    /// Sends one response. Returns whether one was due.
    fn send(&mut self) -> bool {
        let Some(response) = self.session.next_response(&mut self.source, self.limit, self.now)
        else {
            return self.send_nothing();
        };
        assert!(response.resources.is_sorted_by_key(|resource| &resource.name));
        let mut line = format!("-> {} #{}", response.kind.short(), response.nonce);
        for resource in response.resources.iter() {
            let body = resource.body.to_bytes();
            let value = match response.kind {
                ResourceType::VirtualHost => hosts::value(&resource.name, &body),
                _ => String::from_utf8(body.into()).expect("text"),
            };
            write!(line, " {}={value}", short(&resource.name)).expect("a string");
        }
        for name in &response.removed {
            write!(line, " -{}", short(name)).expect("a string");
        }
        self.log.push(line);
        true
    }
}

impl Stage {
    /// Sends the response that requested resources do not exist, if it is due.
    fn send_nothing(&mut self) -> bool {
        let Some(nothing) = self.session.next_aside() else { return false };
        let bytes = &*nothing.to_bytes();
        let (nonce, type_url, removed) = match self.form {
            ProtocolForm::Delta => {
                let read = DeltaDiscoveryResponse::decode(bytes).expect("a response");
                (read.nonce, read.type_url, read.removed_resources)
            }
            ProtocolForm::Sotw => {
                let read = DiscoveryResponse::decode(bytes).expect("a response");
                (read.nonce, read.type_url, Vec::new())
            }
        };
        let gone: String = removed.iter().map(|name| format!(" -{name}")).collect();
        self.log.push(format!("-> {type_url} #{nonce}{gone}"));
        true
    }
}

fn kind(short: &str) -> Option<ResourceType> {
    ResourceType::SERVED.into_iter().find(|kind| kind.short() == short)
}

fn full(kind: ResourceType, name: &str) -> String {
    let is_short = matches!(kind, ResourceType::Cluster | ResourceType::Endpoint)
        && name != EVERYTHING
        && !name.contains('|');
    if is_short { format!("outbound|80||{name}") } else { name.to_owned() }
}

fn short(name: &str) -> &str {
    name.strip_prefix("outbound|80||").unwrap_or(name)
}
