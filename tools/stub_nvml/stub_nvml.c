/* A stand-in for the driver's library, with GPUs that have the faults that a file names.
 *
 * Only what `nvidia-ml-py` calls for the agent's samples; the declarations follow NVIDIA's NVML API reference. The file
 * is named by STUB_NVML_MODES and is read again when it has changed: the number of GPUs, then words INDEX=MODE, where
 * INDEX may be * for all of them and the library itself. Modes: lost, hang (until the file says otherwise), ecc, slow
 * (0.1 s a call), idle, busy (with a process 4000 + INDEX), nolink (NVLink 3 is down); any other is healthy.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
enum { MAX_GPUS = 64, LINKS = 18, MODE_BYTES = 16, PAUSE_US = 20000, SLOW_US = 100000 };

typedef struct { int index; char mode[MODE_BYTES]; } device_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_info_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_info_t;
typedef union { double d; unsigned ui; unsigned long long ull; long long sll; } value_t;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    int type, status;
    value_t value;
} field_value_t;

static device_t devices[MAX_GPUS];
static char library_mode[MODE_BYTES];
static int count;
static struct stat read_stat;

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static void read_modes(void)
{
    const char *path = getenv("STUB_NVML_MODES");
    struct stat now;
    if (path == NULL || stat(path, &now) != 0)
        return;
    if (now.st_ino == read_stat.st_ino && now.st_mtim.tv_sec == read_stat.st_mtim.tv_sec
        && now.st_mtim.tv_nsec == read_stat.st_mtim.tv_nsec && now.st_size == read_stat.st_size)
        return;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return;
    char index[8], mode[MODE_BYTES];
    if (fscanf(file, "%d", &count) != 1 || count < 0 || count > MAX_GPUS)
        count = 0;
    memset(library_mode, 0, sizeof library_mode);
    for (int i = 0; i < MAX_GPUS; i++)
        devices[i] = (device_t){.index = i};
    while (fscanf(file, " %7[^=]=%15s", index, mode) == 2)
        for (int i = 0; i < count; i++) {
            if (index[0] == '*')
                strcpy(library_mode, mode);
            if (index[0] == '*' || atoi(index) == i)
                strcpy(devices[i].mode, mode);
        }
    fclose(file);
    read_stat = now;
}

static void load(void)
{
    pthread_mutex_lock(&loading);
    read_modes();
    pthread_mutex_unlock(&loading);
}

static int enter(const char *mode)
{
    load();
    if (strcmp(mode, "slow") == 0)
        usleep(SLOW_US);
    while (strcmp(mode, "hang") == 0) {
        usleep(PAUSE_US);
        load();
    }
    return strcmp(mode, "lost") == 0 ? GPU_IS_LOST : SUCCESS;
}

#define ENTER(device) \
    do { \
        int status = enter((device)->mode); \
        if (status != SUCCESS) \
            return status; \
    } while (0)
#define NUMBER(name, type, expression) \
    int name(device_t *device, type *value) \
    { \
        ENTER(device); \
        *value = (expression); \
        return SUCCESS; \
    }
#define NUMBER_OF(name, type, expression) \
    int name(device_t *device, int kind, type *value) \
    { \
        ENTER(device); \
        *value = (expression); \
        return SUCCESS; \
    }

int nvmlInitWithFlags(unsigned flags) { return enter(library_mode); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int status) { return status == GPU_IS_LOST ? "GPU is lost" : "an error"; }

int nvmlDeviceGetCount_v2(unsigned *value)
{
    int status = enter(library_mode);
    *value = count;
    return status;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **device)
{
    load();
    if ((int)index >= count)
        return INVALID_ARGUMENT;
    *device = &devices[index];
    return enter((*device)->mode);
}

int nvmlDeviceGetUUID(device_t *device, char *text, unsigned bytes)
{
    ENTER(device);
    snprintf(text, bytes, "GPU-00000000-0000-0000-0000-%012d", device->index);
    return SUCCESS;
}

int nvmlDeviceGetName(device_t *device, char *text, unsigned bytes)
{
    ENTER(device);
    snprintf(text, bytes, "NVIDIA H100 80GB HBM3");
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(device_t *device, pci_info_t *info)
{
    ENTER(device);
    memset(info, 0, sizeof *info);
    info->bus = 0x10 + device->index;
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device_t *device, utilization_t *rates)
{
    ENTER(device);
    int is_idle = strcmp(device->mode, "idle") == 0;
    *rates = (utilization_t){is_idle ? 0 : 90 + device->index % 10, is_idle ? 0 : 40};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *memory)
{
    ENTER(device);
    unsigned long long gib = 1ULL << 30;
    *memory = (memory_t){80 * gib, 16 * gib, 64 * gib};
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(device_t *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    ENTER(device);
    int has_errors = strcmp(device->mode, "ecc") == 0;
    *corrected = 0, *uncorrected = has_errors, *pending = has_errors, *failed = 0;
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(device_t *device, int kind, int counter, unsigned long long *value)
{
    ENTER(device);
    *value = kind == 1 && strcmp(device->mode, "ecc") == 0 ? 3 : 0;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(device_t *device, unsigned link, unsigned *is_active)
{
    ENTER(device);
    if (link >= LINKS)
        return INVALID_ARGUMENT;
    *is_active = link != 3 || strcmp(device->mode, "nolink") != 0;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(device_t *device, int number, field_value_t *values)
{
    ENTER(device);
    for (int i = 0; i < number; i++) {
        values[i].status = SUCCESS;
        values[i].type = 1;
        values[i].value.ull = 0;
        values[i].value.ui = values[i].field == 82 ? 55 : 0; /* temperature of the memory; errors of links */
    }
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t *device, unsigned *number, process_info_t *processes)
{
    ENTER(device);
    unsigned room = *number;
    *number = strcmp(device->mode, "busy") == 0;
    if (*number == 0)
        return SUCCESS;
    if (room < 1 || processes == NULL)
        return INSUFFICIENT_SIZE;
    processes[0] = (process_info_t){.pid = 4000 + device->index};
    return SUCCESS;
}

NUMBER(nvmlDeviceGetPowerUsage, unsigned, 650000 + device->index)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, 700000)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 0)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, 0)
NUMBER_OF(nvmlDeviceGetTemperature, unsigned, 60 + device->index)
NUMBER_OF(nvmlDeviceGetTemperatureThreshold, unsigned, 87)
NUMBER_OF(nvmlDeviceGetClockInfo, unsigned, 1980)
NUMBER_OF(nvmlDeviceGetMaxClockInfo, unsigned, 1980)

int nvmlDeviceGetMigMode(device_t *device, unsigned *current, unsigned *pending) { return NOT_SUPPORTED; }
