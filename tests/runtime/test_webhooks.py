"""Webhooks tell a server of runs that stop and of approvals, at least once, signed, and without what was said."""

import base64
import hashlib
import hmac
import json
import ssl
import sys
from datetime import UTC, datetime, timedelta

import pytest

from factories.receiver import open_receiver
from factories.runtime import only_approval, wait_for, wait_until
from standfast import Agent, FunctionModel, Runtime, Store, function_tool
from standfast.base.errors import InvalidInput, MissingExtra, NotFound
from standfast.runtime._engine.webhook_sender import CLAIM_SECONDS, MAX_PER_WEBHOOK, RETRY_SECONDS
from standfast.store.memory import MemoryBackend
from standfast.testing.faults import FakeClock


def payer():
    @function_tool(needs_approval=True)
    def pay(amount: int) -> str:
        return "paid"

    def decide(request):
        last = request.input[-1]
        return "done" if last.get("type") == "function_call_output" else FunctionModel.call("pay", amount=4711)

    return Agent("payer", tools=[pay], model=FunctionModel(decide))


def echo():
    return Agent("echo", model=FunctionModel(lambda request: request.input[-1]["content"]))


def verify(secret, headers, body):
    """Check a request as receivers do."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    return json.loads(body)


class Office:
    """Runtimes on one store whose clock is set by the test."""

    def __init__(self):
        self.clock = FakeClock()
        self.store = Store(MemoryBackend(clock=self.clock))

    def open(self, *agents, **options):
        return Runtime.open(self.store, agents=agents, **options)


@pytest.fixture
def office():
    return Office()


async def nudge(runtime):
    """Let a runtime look for what is due, as any change of a webhook does."""
    other = await runtime.webhooks.create("https://example.com/", events=["run.cancelled"])
    await runtime.webhooks.delete(other.webhook.id)


async def list_states(runtime, webhook):
    found = await runtime.webhooks.deliveries(webhook.id)
    sending = {one.id for one in found if one.status == "pending" and one.attempts and one.problem is None}
    return [(one.event, "sending" if one.id in sending else one.status, one.attempts) for one in found]


def has_states(runtime, webhook, *states):
    async def condition():
        return await list_states(runtime, webhook) == list(states)

    return wait_until(condition)


async def test_events_of_a_run_with_an_approval_are_sent_from_beginning_to_end(shared_url):
    async with open_receiver() as receiver, Runtime.open(shared_url, agents=[payer()]) as runtime:
        made = await runtime.webhooks.create(receiver.url, private=True)
        run = await runtime.start("payer", "a secret wish", session_id="ann")
        assert (await wait_for(run.wait())).status == "waiting"
        await receiver.wait_for(2)
        approval = await only_approval(runtime)
        await runtime.decide(approval.id, "approve")
        assert (await wait_for(run.wait())).status == "completed"
        await receiver.wait_for(4)
        told = [verify(made.secret, headers, body) for _, headers, body in receiver.requests]
        about = {"run_id": run.id, "session_id": "ann", "agent": "payer"}
        call = about | {"approval_id": approval.id, "kind": "approval", "tool": "pay", "expires_at": None}
        found = {one["type"]: one["data"] for one in told}
        assert found == {
            "approval.requested": call | {"status": "pending"},
            "run.waiting": about | {"status": "waiting", "reason": None},
            "approval.decided": call | {"status": "approved"},
            "run.completed": about | {"status": "completed", "reason": None},
        }
        assert all(b"4711" not in body and b"secret" not in body for _, _, body in receiver.requests)
        assert {path for path, _, _ in receiver.requests} == {"/hook?room=1"}
        moments = [datetime.fromisoformat(one["timestamp"]) for one in told]
        assert all(datetime.now(UTC) - moment < timedelta(hours=1) for moment in moments)

        async def is_over():
            return {state for _, state, _ in await list_states(runtime, made.webhook)} == {"delivered"}

        await wait_until(is_over)


async def test_only_selected_events_are_sent(shared_url):
    async with open_receiver() as receiver, Runtime.open(shared_url, agents=[payer(), echo()]) as runtime:
        made = await runtime.webhooks.create(receiver.url, private=True, events=["run.cancelled"])
        assert (await wait_for((await runtime.start("echo", "hi")).wait())).final_output == "hi"
        run = await runtime.start("payer", "pay")
        await wait_for(run.wait())
        await runtime.cancel(run.id)
        await receiver.wait_for(1)
        await has_states(runtime, made.webhook, ("run.cancelled", "delivered", 1))
        assert len(receiver.requests) == 1


async def test_failures_are_repeated_with_the_same_id_until_a_server_accepts(office):
    async with open_receiver() as receiver, office.open(echo()) as runtime:
        receiver.answers = ["500 No", "301 Moved Permanently\r\nLocation: http://localhost:1/"]
        made = await runtime.webhooks.create(receiver.url, private=True)
        await wait_for((await runtime.start("echo", "hi")).wait())
        for attempts, delay in enumerate(RETRY_SECONDS[:2], start=1):
            await has_states(runtime, made.webhook, ("run.completed", "pending", attempts))
            [delivery] = await runtime.webhooks.deliveries(made.webhook.id)
            assert delivery.problem == f"the server answered {[500, 301][attempts - 1]}"
            office.clock.advance(delay)
            await nudge(runtime)
        await has_states(runtime, made.webhook, ("run.completed", "delivered", 3))
        ids = [headers["webhook-id"] for _, headers, _ in receiver.requests]
        assert len(ids) == 3
        assert len(set(ids)) == 1


async def test_a_delivery_fails_after_all_attempts_and_can_be_sent_again(office):
    async with open_receiver() as receiver, office.open(echo()) as runtime:
        made = await runtime.webhooks.create(receiver.url, private=True, events=["run.failed"])
        receiver.answers = ["503 Busy"] * (len(RETRY_SECONDS) + 1)
        await runtime.webhooks.send_test(made.webhook.id)
        for attempts, delay in enumerate(RETRY_SECONDS, start=1):
            await has_states(runtime, made.webhook, ("test", "pending", attempts))
            office.clock.advance(delay)
            await nudge(runtime)
        await has_states(runtime, made.webhook, ("test", "failed", len(RETRY_SECONDS) + 1))
        [failed] = await runtime.webhooks.deliveries(made.webhook.id)
        with pytest.raises(NotFound, match="delivery"):
            await runtime.webhooks.resend(made.webhook.id, "msg_other")
        await runtime.webhooks.resend(made.webhook.id, failed.id)
        await has_states(runtime, made.webhook, ("test", "delivered", 1))


async def test_a_delivery_whose_sender_died_is_sent_by_another_runtime(office):
    async with open_receiver() as receiver:
        receiver.answers = ["silence"]
        async with office.open(echo()) as runtime:
            made = await runtime.webhooks.create(receiver.url, private=True)
            await runtime.webhooks.send_test(made.webhook.id)
            await receiver.wait_for(1)
        office.clock.advance(CLAIM_SECONDS + 1)
        async with office.open(echo()) as runtime:
            await receiver.wait_for(2)
            await has_states(runtime, made.webhook, ("test", "delivered", 2))
        (_, first, _), (_, second, _) = receiver.requests
        assert first["webhook-id"] == second["webhook-id"]


async def test_a_receiver_that_does_not_answer_delays_no_other(office):
    async with open_receiver() as slow, open_receiver() as quick, office.open(echo()) as runtime:
        slow.answers = ["later"] * MAX_PER_WEBHOOK
        first = await runtime.webhooks.create(slow.url, private=True)
        second = await runtime.webhooks.create(quick.url, private=True)
        for _ in range(MAX_PER_WEBHOOK + 1):
            await runtime.webhooks.send_test(first.webhook.id)
        await slow.wait_for(MAX_PER_WEBHOOK)
        await runtime.webhooks.send_test(second.webhook.id)
        await has_states(runtime, second.webhook, ("test", "delivered", 1))
        assert len(slow.requests) == MAX_PER_WEBHOOK
        slow.allowed.set()
        await has_states(runtime, first.webhook, *[("test", "delivered", 1)] * (MAX_PER_WEBHOOK + 1))


async def test_a_delivery_that_waited_is_signed_and_claimed_for_the_time_of_its_attempt(office):
    async with open_receiver() as receiver, office.open(echo()) as runtime:
        receiver.answers = ["later"] * MAX_PER_WEBHOOK
        made = await runtime.webhooks.create(receiver.url, private=True)
        for _ in range(MAX_PER_WEBHOOK + 1):
            await runtime.webhooks.send_test(made.webhook.id)
        await receiver.wait_for(MAX_PER_WEBHOOK)
        office.clock.advance(CLAIM_SECONDS / 2)
        receiver.allowed.set()
        *earlier, last = await receiver.wait_for(MAX_PER_WEBHOOK + 1)
        moments = [int(headers["webhook-timestamp"]) for _, headers, _ in (*earlier, last)]
        assert moments[-1] - moments[0] == CLAIM_SECONDS / 2


async def test_an_event_of_another_runtime_is_sent_once(shared_url):
    async with (
        open_receiver() as receiver,
        Runtime.open(shared_url, agents=[echo()]) as first,
        Runtime.open(shared_url, agents=[echo()]) as second,
        Runtime.open(shared_url) as without_agents,
    ):
        made = await without_agents.webhooks.create(receiver.url, private=True)
        for _ in range(5):
            await without_agents.webhooks.send_test(made.webhook.id)
        for runtime in (first, second):
            await nudge(runtime)
        await has_states(first, made.webhook, *[("test", "delivered", 1)] * 5)
        assert len({headers["webhook-id"] for _, headers, _ in receiver.requests}) == len(receiver.requests) == 5


async def test_addresses_of_the_machine_and_its_network_are_refused(office):
    async with open_receiver() as receiver, office.open(echo()) as runtime:
        made = await runtime.webhooks.create(receiver.url.replace("http:", "https:"))
        await runtime.webhooks.send_test(made.webhook.id)
        await has_states(runtime, made.webhook, ("test", "pending", 1))
        [delivery] = await runtime.webhooks.deliveries(made.webhook.id)
        assert "not an address of the Internet" in delivery.problem
        assert receiver.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "https://",
        "https://user:secret@example.com/",
        "https://example.com:99999/",
        "https://example.com/a b",
        "https://example.com/\r\nx-evil: 1",
        "//example.com",
        "javascript:alert(1)",
        None,
    ],
)
async def test_addresses_of_no_server_are_refused(office, url):
    async with office.open() as runtime:
        with pytest.raises(InvalidInput, match="not an address"):
            await runtime.webhooks.create(url)
        with pytest.raises(InvalidInput, match="unknown events"):
            await runtime.webhooks.create("https://example.com/", events=["run.started"])
        with pytest.raises(InvalidInput, match="secret"):
            await runtime.webhooks.create("https://example.com/", secret="whsec_c2hvcnQ=")
        assert await runtime.webhooks.list() == []


async def test_a_certificate_is_checked_for_the_name_and_not_the_address(office, tmp_path, monkeypatch):
    certificate, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with open_receiver(context) as receiver, office.open(echo()) as runtime:
        made = await runtime.webhooks.create(receiver.url, private=True)
        await runtime.webhooks.send_test(made.webhook.id)
        await has_states(runtime, made.webhook, ("test", "pending", 1))
        [delivery] = await runtime.webhooks.deliveries(made.webhook.id)
        assert "certificate" in delivery.problem.lower()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        office.clock.advance(RETRY_SECONDS[0])
        await nudge(runtime)
        await has_states(runtime, made.webhook, ("test", "delivered", 2))
        [(_, headers, _)] = receiver.requests
        assert headers["host"].startswith("localhost:")


def make_certificate(folder):
    """Return the files of a certificate for localhost, which signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
    certificate_file.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


async def test_an_encrypted_runtime_encrypts_address_and_secret_and_sends_ids_only(office):
    keys = ["another key of sixteen letters", "a key of sixteen letters"]
    async with open_receiver() as receiver:
        async with office.open(payer(), encryption_key=keys[1]) as runtime:
            made = await runtime.webhooks.create(receiver.url, private=True, events=["run.waiting"])
            [document] = await office.store.backend.list_documents("webhook", limit=10)
            assert b"hook" not in document.data.replace(b"webhook", b"")
            run = await runtime.start("payer", "pay")
            await receiver.wait_for(1)
            told = verify(made.secret, *receiver.requests[0][1:])
            assert told["data"] == {"run_id": run.id, "session_id": None, "status": "waiting"}
        async with office.open(payer()) as other:
            assert [one.url for one in await other.webhooks.list()] == [None]
        async with office.open(payer(), encryption_key=keys) as runtime:
            assert (await runtime.rekey()).failed == {}
        async with office.open(payer(), encryption_key=keys[0]) as runtime:
            assert [one.url for one in await runtime.webhooks.list()] == [receiver.url]
            await runtime.webhooks.send_test(made.webhook.id)
            await receiver.wait_for(2)
            assert verify(made.secret, *receiver.requests[1][1:])["type"] == "test"


async def test_a_runtime_without_the_library_for_requests_leaves_them_to_others(office, monkeypatch):
    async with open_receiver() as receiver, office.open() as maker:
        made = await maker.webhooks.create(receiver.url, private=True)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "httpx2", None)  # as if it was not installed
            with pytest.raises(MissingExtra, match="webhooks"):
                await maker.webhooks.create(receiver.url, private=True)
            async with office.open(echo()) as without:
                assert (await wait_for((await without.start("echo", "hi")).wait())).final_output == "hi"
                assert await list_states(without, made.webhook) == [("run.completed", "pending", 0)]
        async with office.open(echo()) as runtime:
            await has_states(runtime, made.webhook, ("run.completed", "delivered", 1))


async def test_a_deleted_webhook_leaves_nothing_behind(office):
    async with open_receiver() as receiver, office.open(echo()) as runtime:
        made = await runtime.webhooks.create(receiver.url, private=True)
        receiver.answers = ["204 No Content", "500 No"]
        await runtime.webhooks.send_test(made.webhook.id)
        await has_states(runtime, made.webhook, ("test", "delivered", 1))
        await runtime.webhooks.send_test(made.webhook.id)
        await has_states(runtime, made.webhook, ("test", "pending", 1), ("test", "delivered", 1))
        await runtime.webhooks.delete(made.webhook.id)
        with pytest.raises(NotFound, match="webhook"):
            await runtime.webhooks.deliveries(made.webhook.id)
        kinds = ("webhook", "webhook-due", "webhook-log")
        assert not [one for kind in kinds for one in await office.store.backend.list_documents(kind, limit=10)]
        await wait_for((await runtime.start("echo", "hi")).wait())
        office.clock.advance(RETRY_SECONDS[0])
        await nudge(runtime)
        assert not [one for kind in kinds for one in await office.store.backend.list_documents(kind, limit=10)]
        assert len(receiver.requests) == 2
