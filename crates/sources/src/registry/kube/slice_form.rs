//! The decoded part of an EndpointSlice: rows, decoded directly from the bytes.
//!
//! A slice consists mostly of similar endpoints. No intermediate object is created between the
//! bytes of an endpoint and its row. Names that rows share are in tables, still borrowed, so that
//! each of them is looked up once when the slice is stored, and not once per endpoint.

mod in_order;
mod plain;
mod rows;
mod table;

pub(super) use self::rows::{
    Conditions, ENDPOINTS_MAX, IPV6, Rows, SliceForm, SlicePort, SliceRow,
};
use strait_kube_client::{FieldValue, Form, Identity, MalformedMessage, ProtobufMessage};

// Field numbers: k8s.io/api/discovery/v1/generated.proto.

impl<'a> ProtobufMessage<'a> for SliceForm<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a>) -> Result<(), MalformedMessage> {
        match number {
            1 => value.message(&mut self.metadata)?,
            2 => {
                let bytes = value.bytes()?;
                match in_order::endpoint(bytes) {
                    Some(endpoint) => self.endpoints.push(endpoint),
                    None => self.endpoints.push_in_any_order(bytes)?,
                }
            }
            3 => value.push(&mut self.ports)?,
            4 => self.address_type = value.text()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Form<'a> for SliceForm<'a> {
    fn from_protobuf(bytes: &'a [u8]) -> Result<Self, MalformedMessage> {
        let mut form = Self::default();
        // An endpoint takes at least about 100 bytes.
        form.endpoints.reserve(bytes.len() / 96);
        form.merge(bytes).map(|()| form)
    }

    fn from_plain_json(json: &'a [u8]) -> Option<(Self, &'a [u8])> {
        plain::slice(json)
    }

    fn identity(&self) -> Identity<'_> {
        self.metadata.identity()
    }
}
